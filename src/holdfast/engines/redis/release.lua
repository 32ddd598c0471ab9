-- Ends what the caller has: its hold, and its place in the queue. ARGV: token, mailbox, window (see hand_over), and the
-- entry of a caller that may be in the queue, or ''.
-- Returns {0} if it did not hold the lock, else {1}; {1, label, fence} if the lock went to a waiter of that mailbox;
-- {1, '', label} if it was offered to another process and this waiter of the mailbox is to look again after the window.
local token, here, window, entry = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
if entry ~= '' then
  redis.call('ZREM', queue, entry)
end
if redis.call('GET', lock) ~= token then
  return { 0 }
end
local heir, more = hand_over(window, here)
if heir == false and more then
  return { 1, '', more }
end
return { 1, heir or nil, more }
