-- What the scripts share; put in front of each. The keys of one lock, all in one slot of a cluster:
local lock = KEYS[1] -- a string of the lock's own name: the holder's token; its expiry is the lease
local grant = KEYS[2] -- {name}:grant: the last grant: its fence, when, to whom; it outlives the lock by a day
local queue = KEYS[3] -- {name}:queue: a sorted set of entries, in the order of arrival

-- An entry says all about one caller: "token mailbox ttl owner about". Only `about` may hold spaces; an owner that the
-- caller did not choose is "-". The same caller always sends the same entry. A token is "label-secret".

-- Messages that are published to a mailbox: "offered label", "look label ms", "evicted label fence",
-- "retaken label fence".

local KEEP_FENCE = 86400000 -- ms after the lease: the fence grows through a clock put back by less than this
local KEEP_QUEUE = 90000 -- ms, far more than the longest time between two questions of one waiter
local ASK_AGAIN = 30000 -- ms, the longest time between two questions

local function last_grant()
  return redis.call('GET', grant) or ''
end

-- Makes the caller of the entry the holder, for so many ms. The fence is at least the server's µs, so that it grows
-- also when the memory of the last one is gone: after a restart, a failover, or the expiry of its own key.
local function give(entry, ms)
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  local last = tonumber(string.match(last_grant(), '^%d+')) or 0
  local fence = string.format('%.0f', math.max(last + 1, now))
  local token, rest = string.match(entry, '^(%S+) (.*)$')
  redis.call('SET', lock, token, 'PX', ms)
  redis.call('SET', grant, fence .. ' ' .. time[1] .. ' ' .. rest, 'PX', ms + KEEP_FENCE)
  return fence
end

-- Sets what remains of the lease.
local function prolong(ms)
  redis.call('PEXPIRE', lock, ms)
  redis.call('PEXPIRE', grant, ms + KEEP_FENCE)
end

local function label_of(token)
  return string.match(token, '^[^-]*')
end

local function fence_of_holder()
  return string.match(last_grant(), '^%d+')
end

-- Tells the holder's process, unless nobody is in charge, that its lock has gone: the grant of that fence, which may be
-- an offer. If it is the caller's own process (`here`) the reply tells: a message could overtake it, and cancel the very
-- task that asks.
local function tell_holder(verb, here)
  local fence, mailbox = string.match(last_grant(), '^(%d+) %d+ (%S+)')
  if mailbox and mailbox ~= '-' and mailbox ~= here then
    redis.call('PUBLISH', mailbox, verb .. ' ' .. label_of(redis.call('GET', lock)) .. ' ' .. fence)
  end
end

local function stand_in_queue(entry)
  if not redis.call('ZSCORE', queue, entry) then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
    redis.call('ZADD', queue, (tonumber(last[2]) or 0) + 1, entry)
  end
  redis.call('PEXPIRE', queue, KEEP_QUEUE)
end

-- Somebody was offered the lock and may never take it up: any waiter of another process that asks after the window sees
-- to it that the next one is. Returns the label of a waiter of `here`, who is told by the reply; else calls one.
local function ask_to_look_again(offered_to, window, here)
  local other
  for _, entry in ipairs(redis.call('ZRANGE', queue, 0, 15)) do
    local token, mailbox = string.match(entry, '^(%S+) (%S+)')
    if mailbox == here then
      return label_of(token)
    end
    if mailbox ~= offered_to and not other then
      other = { mailbox, label_of(token) }
    end
  end
  if other then
    redis.call('PUBLISH', other[1], 'look ' .. other[2] .. ' ' .. window)
  end
end

-- Gives the lock to the first in the queue that is there to have it; without one it is free. A waiter of the mailbox
-- `here`, or with the token `me`, hears of it by the reply of this very call, and has it for its own ttl: returns its
-- label and fence. Any other one is offered it by a message, and must take it up within the window (ms): returns nothing,
-- or false and the label of a waiter of `here` who is to look again after the window. If nobody hears the message, that
-- waiter's process is dead and it is the next one's turn; a negative window says that this cannot be known: in a cluster
-- those who hear are counted on one node only.
local function hand_over(window, here, me)
  while true do
    local first = redis.call('ZPOPMIN', queue)[1]
    if not first then
      redis.call('DEL', lock)
      return nil
    end
    local token, mailbox, ttl = string.match(first, '^(%S+) (%S+) (%S+)')
    if mailbox == here or token == me then
      return label_of(token), give(first, ttl)
    end
    if redis.call('PUBLISH', mailbox, 'offered ' .. label_of(token)) > 0 or window < 0 then
      give(first, math.abs(window))
      return false, ask_to_look_again(mailbox, math.abs(window), here)
    end
  end
end
