-- Sets when the permits of many leases end: of each that has them.
-- KEYS the permits of each lease; leases of one semaphore repeat them
-- ARGV[1] ttl in ms, which never brings an end nearer; ARGV[2..] the holder ids in the same order
-- A list of one number for each lease: 1 renewed, 0 not.
-- An error is about none of them: some may be renewed.
local scores, lefts = {}, {}
for n, key in ipairs(KEYS) do
  scores[n] = redis.call('ZSCORE', key, ARGV[n + 1])
  -- Before the clock is read, as in permits_renew.lua.
  lefts[n] = redis.call('PTTL', key)
end
read_clock()
local reply, written, ends_at = {}, false, {}
for n, key in ipairs(KEYS) do
  local score = scores[n]
  reply[n] = 0
  if score and tonumber(score) >= now then
    local ends = math.max(now + ARGV[1], tonumber(score))
    local last = math.max(ends, now + lefts[n])
    -- Before ZADD: a server whose memory is full allows it, and after it the other writes, too.
    if not written or last > (ends_at[key] or 0) then
      redis.call('PEXPIREAT', key, string.format('%.0f', last))
      ends_at[key] = last
    end
    redis.call('ZADD', key, 'XX', ends, ARGV[n + 1])
    reply[n], written = 1, true
  end
end
-- A write that changes nothing: a server that has become a replica replies READONLY, not "not
-- yours".
if not written then redis.call('ZREM', KEYS[1], '') end
return reply
