-- Takes the lock from whoever holds it. ARGV: window (see hand_over). Returns 1, or 0 if nobody holds it.
if redis.call('EXISTS', lock) == 0 then
  return 0
end
tell_holder('evicted')
hand_over(tonumber(ARGV[1]))
return 1
