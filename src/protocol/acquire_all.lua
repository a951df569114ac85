-- Takes several locks, all of them or none, and draws a fencing token for each, in one step.
-- KEYS: the locks, then their fences in the same order; ARGV[1] holder id, ARGV[2] ttl in ms
-- Granted: {1, the token of each}. Refused: {0, the holder's value, its ttl in ms or -1, which lock, from 1}.
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
  if holder then
    local left = redis.call('PTTL', KEYS[n])
    -- A server that has become a replica must answer READONLY here, not "refused": so a write, of a key
    -- that is there.
    if redis.call('SET', KEYS[n], ARGV[1], 'NX', 'PX', ARGV[2]) then redis.call('DEL', KEYS[n]) end
    -- Others may have written megabytes. No holder id of ours is longer than this.
    return {0, string.sub(holder, 1, 1088), left, n}
  end
end
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply = {1}
for n = 1, count do
  local token = now
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
    if last >= token then token = last + 1 end
  end
  reply[n + 1] = token
end
-- The fences first: a token that nobody was given does no harm.
for n = 1, count do
  local kept = redis.pcall('SET', KEYS[count + n], reply[n + 1], 'EX', 86400)
  if kept.err then return kept end
end
for n = 1, count do
  local taken = redis.pcall('SET', KEYS[n], ARGV[1], 'PX', ARGV[2])
  if taken.err then
    for before = 1, n - 1 do redis.call('DEL', KEYS[before]) end
    return taken
  end
end
return reply
