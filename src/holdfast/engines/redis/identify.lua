-- Which database this is, by whatever address it was reached. KEYS: where that is kept. ARGV: the name if it has none.
redis.call('SET', KEYS[1], ARGV[1], 'NX')
return redis.call('GET', KEYS[1])
