-- Leaves the lock held with nobody in charge. ARGV: token, ms. Returns 1, or 0 if the lock is not the caller's.
if redis.call('GET', lock) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', lock, ARGV[2])
local before, after = string.match(last_grant(), '^(%d+ %d+) %S+ (.*)$')
if before then
  redis.call('SET', grant, before .. ' - ' .. after, 'PX', ARGV[2] + KEEP_FENCE)
end
return 1
