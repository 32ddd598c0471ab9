-- Asks for the lock. ARGV: entry, ttl in ms, '1' if the caller waits, window (see hand_over).
-- Returns {1, fence} if the caller has it now; else {0, ms}: queued or, if it does not wait, busy; ask again after ms.
-- Idempotent: a caller that asks again (its reply was lost, it was called, its time is up) is told what is true.
local entry, ttl, waits, window = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local token, owner = string.match(entry, '^(%S+) %S+ %S+ (%S+)')
local holder = redis.call('GET', lock)

if not holder and redis.call('EXISTS', queue) == 1 then
  -- A lease or a window has run out. Those who came before are served first.
  if waits == '1' then
    stand_in_queue(entry)
  end
  hand_over(window, nil, token)
  holder = redis.call('GET', lock)
end

if holder == token then
  prolong(ttl)
  return { 1, fence_of_holder() or give(entry, ttl) }
end
if not holder then
  return { 1, give(entry, ttl) }
end
if owner ~= '-' and string.match(last_grant(), '^%d+ %d+ %S+ %S+ (%S+)') == owner then
  tell_holder('retaken', string.match(entry, '^%S+ (%S+)'))
  redis.call('ZREM', queue, entry)
  return { 1, give(entry, ttl) } -- token and fence change
end

if waits == '1' then
  stand_in_queue(entry)
end
local left = redis.call('PTTL', lock)
return { 0, left < 0 and ASK_AGAIN or math.min(left + 1, ASK_AGAIN) } -- one without an end is not of our making
