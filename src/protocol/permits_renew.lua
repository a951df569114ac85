-- Sets when the permits of the caller end, if it has them.
-- KEYS[1] permits
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if this may bring the end nearer
-- Renewed: 1. Otherwise 0.
-- Only one key: a cluster that migrates a slot rejects calls with two keys if one of them does not
-- exist.
read_clock()
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) < now then
  -- A write that changes nothing: a server that has become a replica replies READONLY, not "not
  -- yours".
  redis.call('ZREM', KEYS[1], '')
  return 0
end
local ends = now + ARGV[2]
if ARGV[3] ~= '1' then ends = math.max(ends, tonumber(score)) end
redis.call('ZADD', KEYS[1], 'XX', ends, ARGV[1])
-- Not by PTTL: see `join` in readers.lua.
local later = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. ends, '+inf', 'LIMIT', '0', '1')
if not later[1] then redis.call('PEXPIREAT', KEYS[1], ends) end
return 1
