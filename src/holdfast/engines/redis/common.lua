-- What the scripts share; put in front of each. The keys of one lock, all in one slot of a cluster:
local lock = KEYS[1] -- a string of the lock's own name: the holder's token; its expiry is the lease
local grant = KEYS[2] -- {name}:grant: the last fence, and while the lock is held who has it and since when
local queue = KEYS[3] -- {name}:queue: a sorted set of entries, in the order of arrival

-- An entry says all about one caller: "token mailbox ttl owner about". Only `about` may hold spaces; an owner that the
-- caller did not choose is "-". The same caller always sends the same entry.

local KEEP_FENCE = 86400000 -- ms: the fence grows through a clock put back by less than this
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
  redis.call('SET', grant, fence .. ' ' .. time[1] .. ' ' .. rest, 'PX', KEEP_FENCE)
  return fence
end

local function fence_of_holder()
  return string.match(last_grant(), '^%d+')
end

-- Tells the holder's process that its lock has gone: by eviction, or to its own retry.
local function tell_holder(verb)
  local mailbox = string.match(last_grant(), '^%d+ %d+ (%S+)')
  if mailbox then
    redis.call('PUBLISH', mailbox, verb .. ' ' .. (redis.call('GET', lock) or '-') .. ' ' .. lock)
  end
end

local function stand_in_queue(entry)
  if not redis.call('ZSCORE', queue, entry) then
    local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
    redis.call('ZADD', queue, (tonumber(last[2]) or 0) + 1, entry)
  end
  redis.call('PEXPIRE', queue, KEEP_QUEUE)
end

-- Gives the lock to the first in the queue that is there to have it; without one it is free. One whom `told` says to
-- hear of it by the reply of this very call has it for its own ttl: returns its token and fence. Any other one is
-- called, and must take its grant up within the window (ms). If nobody hears the call, its process is dead and it is the
-- next one's turn; a negative window says that this cannot be known: in a cluster, who hears is counted on one node only.
local function hand_over(window, told)
  while true do
    local first = redis.call('ZPOPMIN', queue)[1]
    if not first then
      redis.call('DEL', lock)
      local fence = fence_of_holder()
      if fence then
        redis.call('SET', grant, fence, 'PX', KEEP_FENCE)
      end
      return nil
    end
    local token, mailbox, ttl = string.match(first, '^(%S+) (%S+) (%S+)')
    if told(token, mailbox) then
      return token, give(first, ttl)
    end
    local heard = redis.call('PUBLISH', mailbox, 'granted ' .. token .. ' ' .. lock)
    if heard > 0 or window < 0 then
      give(first, math.abs(window))
      return nil
    end
  end
end
