-- Sets what remains of the lease. ARGV: token, ms. Returns 1, or 0 if the lock is not the caller's (any more).
if redis.call('GET', lock) ~= ARGV[1] then
  return 0
end
prolong(ARGV[2])
return 1
