-- The server's clock. Prepended to the scripts of queues, and to those of readers and permits.

-- The time since 1970, in µs and in whole ms; nil until `read_clock`.
local micros, now

-- Reads the clock at its first call in a run: most releases find no waiter and need no clock.
local function read_clock()
  if now then return end
  local time = redis.call('TIME')
  micros = time[1] * 1000000 + time[2]
  now = math.floor(micros / 1000)
end

-- Sets when the permits of the caller end, if it has them.
-- KEYS[1] permits
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] 1 if this may bring the end nearer
-- Renewed: 1. Otherwise 0.
-- Only one key: a cluster that migrates a slot rejects calls with two keys if one of them does not
-- exist.
local score = redis.call('ZSCORE', KEYS[1], ARGV[1])
-- Before the clock is read: with an earlier time, a pause of the server between the two would make
-- the end of the key too early.
local left = redis.call('PTTL', KEYS[1])
read_clock()
if not score or tonumber(score) < now then
  -- A write that changes nothing: a server that has become a replica replies READONLY, not "not
  -- yours".
  redis.call('ZREM', KEYS[1], '')
  return 0
end
local ends = now + ARGV[2]
if ARGV[3] ~= '1' then ends = math.max(ends, tonumber(score)) end
-- Before ZADD: a server whose memory is full allows it, and after it the other writes, too.
redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.max(ends, now + left)))
redis.call('ZADD', KEYS[1], 'XX', ends, ARGV[1])
return 1
