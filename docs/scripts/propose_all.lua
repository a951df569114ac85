-- Shared by the scripts that draw fencing tokens; prepended to each of them. The fast paths draw as
-- draw_free.lua says.

-- Returns the last token of a fence; nil if there is no fence. Returns nil and an error if the
-- fence cannot be used: BADFENCE if it holds no integer that, with `more` + 1 added, is below 2^53.
-- `which` precedes the text of the error. `fence` is the fence if the script has read it.
local function last_token(key, which, more, fence)
  if fence == nil then fence = redis.pcall('GET', key) end
  if type(fence) == 'table' then
    if string.find(fence.err, 'WRONGTYPE', 1, true) then
      return nil, redis.error_reply('BADFENCE ' .. which .. 'the fence is no string')
    end
    return nil, fence
  end
  if not fence then return nil end
  local last = tonumber(fence)
  -- From 2^53 on, a Lua number skips integers, and two holders could share a token.
  if not string.find(fence, '^%d+$') or last + more >= 9007199254740991 then
    return nil, redis.error_reply('BADFENCE ' .. which .. 'the fence is no integer below 2^53')
  end
  return last
end

-- Keeps a token in a fence; returns an error if Redis refuses. `last` is the token in the fence,
-- nil if there is none, and `micros` the time in µs, nil if it is not known.
-- The first grant of each 1000 s renews the expiry, which lasts an hour longer than a day. So does
-- each grant while the tokens are ahead of the clock: then it counts from when the clock is there.
local function store(key, token, last, micros)
  -- As text: Redis 7.2.0 to 7.2.4 write a number that is a multiple of 10^8 with an exponent.
  local text = type(token) == 'string' and token or string.format('%.0f', token)
  local lasts = last and micros and last < micros and last >= micros - micros % 1000000000
  local kept
  if lasts then
    kept = redis.pcall('SET', key, text, 'KEEPTTL')
  elseif micros and token - micros > 0 then
    local ends = string.format('%.0f', math.floor(token / 1000) + 90000000)
    kept = redis.pcall('SET', key, text, 'PXAT', ends)
  else
    kept = redis.pcall('SET', key, text, 'EX', '90000')
  end
  if kept.err then return kept end
end

-- Acquires several locks, all or none, on one server of a quorum, under one fencing token that the
-- client proposes.
-- KEYS the locks, then their fences in the same order
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] proposed token
-- Granted: {1, token}.
-- Refused: {0, value of the lock key, its ttl in ms or -1, index of the lock from 1}.
-- Too low: {2, the highest token of all fences}.
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
    -- A write that fails, as in propose.lua.
    if redis.call('SET', KEYS[n], ARGV[1], 'NX', 'PX', ARGV[2]) then redis.call('DEL', KEYS[n]) end
    -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
    return {0, string.sub(holder, 1, 1088), left, n}
  end
end
local token = tonumber(ARGV[3])
local highest = -1
for n = 1, count do
  local last, bad = last_token(KEYS[count + n], n .. ' ', 0)
  if bad then return bad end
  highest = math.max(highest, last or -1)
end
if token <= highest then return {2, highest} end
-- The fences are set first: if setting a lock fails after that, a token that no client receives
-- does no harm. The token says nothing about the server's clock.
for n = 1, count do
  local bad = store(KEYS[count + n], ARGV[3])
  if bad then return bad end
end
for n = 1, count do
  local taken = redis.pcall('SET', KEYS[n], ARGV[1], 'PX', ARGV[2])
  if taken.err then
    for before = 1, n - 1 do redis.call('DEL', KEYS[before]) end
    return taken
  end
end
return {1, token}
