-- Sets when the permits of the caller end, if it has them.
-- KEYS[1] permits
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if this may bring the end nearer
-- Renewed: 1. Otherwise 0.
-- Only one key: a cluster that migrates a slot rejects calls with two keys if one of them does not
-- exist.
-- First a write that changes nothing. A server that has become a replica replies READONLY, not "not
-- yours". A server whose memory is full allows it, and then the other writes, too.
redis.call('ZREM', KEYS[1], '')
read_clock()
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not score or tonumber(score) < now then return 0 end
local ends = now + ARGV[2]
if ARGV[3] ~= '1' then ends = math.max(ends, tonumber(score)) end
redis.call('ZADD', KEYS[1], 'XX', ends, ARGV[1])
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', later_end(KEYS[1], ends)))
return 1
