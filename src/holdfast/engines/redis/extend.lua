-- Sets what remains of the lease. ARGV: token, ms. Returns 1, or 0 if the lock is not the caller's (any more).
if redis.call('GET', lock) ~= ARGV[1] then
  return 0
end
redis.call('PEXPIRE', lock, ARGV[2])
redis.call('PEXPIRE', grant, KEEP_FENCE)
return 1
