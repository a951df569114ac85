-- Takes several locks, all of them or none, on one server of a quorum, under a fencing token that the client
-- proposes for all of them.
-- KEYS: the locks, then their fences in the same order; ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] proposed token
-- Granted: {1, token}. Refused: {0, the holder's value, its ttl in ms or -1, which lock, from 1}.
-- Too low: {2, the highest counter}.
-- Errors: BADFENCE n where the n-th fence holds no integer below 2^53, WRONGTYPE n where the n-th lock is
-- no string. On any error nothing is held.
local count = #KEYS / 2
for n = 1, count do
  local holder = redis.pcall('GET', KEYS[n])
  if type(holder) == 'table' then
    if string.find(holder.err, 'WRONGTYPE', 1, true) then
      return redis.error_reply('WRONGTYPE ' .. n .. ' the lock is no string')
    end
    return holder
  end
  -- Others may have written megabytes. No holder id of ours is longer than this.
  if holder then return {0, string.sub(holder, 1, 1088), redis.call('PTTL', KEYS[n]), n} end
end
local token = tonumber(ARGV[3])
local highest = -1
for n = 1, count do
  local fence = redis.pcall('GET', KEYS[count + n])
  if type(fence) == 'table' then
    if string.find(fence.err, 'WRONGTYPE', 1, true) then
      return redis.error_reply('BADFENCE ' .. n .. ' the fence is no string')
    end
    return fence
  end
  if fence then
    local last = tonumber(fence)
    -- 2^53: from there on a Lua number skips integers, and two holders could share a token.
    if not string.find(fence, '^%d+$') or last >= 9007199254740991 then
      return redis.error_reply('BADFENCE ' .. n .. ' the fence is no integer below 2^53')
    end
    highest = math.max(highest, last)
  end
end
if token <= highest then return {2, highest} end
-- The fences first: a token that nobody was given does no harm. The text as it came: what Lua makes of a
-- large number may have an exponent.
for n = 1, count do
  local kept = redis.pcall('SET', KEYS[count + n], ARGV[3], 'EX', 86400)
  if kept.err then return kept end
end
for n = 1, count do
  local taken = redis.pcall('SET', KEYS[n], ARGV[1], 'PX', ARGV[2])
  if taken.err then
    for before = 1, n - 1 do redis.call('DEL', KEYS[before]) end
    return taken
  end
end
return {1, token}
