-- Takes a lock over from its token. ARGV: the token, the new holder's entry, ttl in ms.
-- Returns the new fence, or nothing if the token does not hold the lock (any more). Idempotent by the new token.
local old, entry, ttl = ARGV[1], ARGV[2], ARGV[3]
local holder = redis.call('GET', lock)
if holder and holder == string.match(entry, '^%S+') then
  prolong(ttl)
  return fence_of_holder() or give(entry, ttl)
end
if holder ~= old then
  return false
end
tell_holder('retaken', string.match(entry, '^%S+ (%S+)'))
-- The owner stays the one that took the lock: its retried step must find it, whoever has taken up the token.
local before, after = string.match(entry, '^(%S+ %S+ %S+) %S+ (.*)$')
local owner = string.match(last_grant(), '^%d+ %d+ %S+ %S+ (%S+)') or '-'
return give(before .. ' ' .. owner .. ' ' .. after, ttl)
