-- For operators. Returns {its last grant, ms left, how many wait}, or nothing if the lock is free.
local left = redis.call('PTTL', lock)
if left < 0 then
  return false
end
return { last_grant(), left, redis.call('ZCARD', queue) }
