-- Acquires several locks, all or none, and draws a fencing token for each, in one step.
-- KEYS the locks, then their fences in the same order
-- ARGV[1] holder id, ARGV[2] ttl in ms
-- Granted: {1, token of each lock}.
-- Refused: {0, value of the lock key, its ttl in ms or -1, ms since its last token was drawn, index
-- of the lock from 1}. The ms since then are negative if they are not known.
-- Errors: BADFENCE n if the n-th fence holds no integer below 2^53 - 1, WRONGTYPE n if the n-th
-- lock is no string. After any error the caller holds none of the locks.
local count = #KEYS / 2
for n = 1, count do
  local holder = redis.pcall('GET', KEYS[n])
  if type(holder) == 'table' then
    if string.find(holder.err, 'WRONGTYPE', 1, true) then
      return redis.error_reply('WRONGTYPE ' .. n .. ' the lock is no string')
    end
    return holder
  end
  if holder then
    local left = redis.call('PTTL', KEYS[n])
    -- A write that fails, since the key exists: a server that has become a replica then replies
    -- READONLY, not "refused".
    if redis.call('SET', KEYS[n], ARGV[1], 'NX', 'PX', ARGV[2]) then redis.call('DEL', KEYS[n]) end
    local last = last_token(KEYS[count + n], '', 0)
    local time = redis.call('TIME')
    local age = last and math.floor((time[1] * 1000000 + time[2] - last) / 1000) or -1
    -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
    return {0, string.sub(holder, 1, 1088), left, age, n}
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply, drawn = {1}, {}
for n = 1, count do
  local last, bad = last_token(KEYS[count + n], n .. ' ', 0)
  if bad then return bad end
  drawn[n], reply[n + 1] = last, math.max(now, (last or 0) + 1)
end
-- The fences are set first: a token that no client receives does no harm.
for n = 1, count do
  local bad = store(KEYS[count + n], reply[n + 1], drawn[n], now)
  if bad then return bad end
end
for n = 1, count do
  local taken = redis.pcall('SET', KEYS[n], ARGV[1], 'PX', ARGV[2])
  if taken.err then
    for before = 1, n - 1 do redis.call('DEL', KEYS[before]) end
    return taken
  end
end
return reply
