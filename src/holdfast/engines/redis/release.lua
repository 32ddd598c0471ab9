-- Ends what the caller has: its hold, and its place in the queue. ARGV: token, mailbox, window (see hand_over), and the
-- entry of a caller that may be in the queue, or ''.
-- Returns {1} if it held the lock, {1, token, fence} if the lock went to a waiter of that same mailbox, else {0}.
local token, here, window, entry = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if entry ~= '' then
  redis.call('ZREM', queue, entry)
end
if redis.call('GET', lock) ~= token then
  return { 0 }
end
local heir, fence = hand_over(window, function(_, mailbox)
  return mailbox == here
end)
return { 1, heir, fence }
