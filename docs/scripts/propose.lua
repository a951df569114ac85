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

-- Acquires the lock on one server of a quorum, under a fencing token that the client proposes.
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] proposed token
-- ARGV[4] last token to reserve (default ARGV[3]); 0 if other servers keep the lease: then it gets
--   a free key here whatever the fence says, and the larger of fence and token stays
-- Granted: {1, token}. Refused: {0, value of the lock key, its ttl in ms or -1}.
-- Too low: {2, the fence's token}.
-- Errors: BADFENCE if the fence holds no integer below 2^53 - 1, or ARGV[4] is not below 2^53.
-- After any error the lock is not held.
local last, bad = last_token(KEYS[2], '', 0)
if bad then return bad end
local token = tonumber(ARGV[3])
local joins = ARGV[4] == '0'
local reserved = not joins and ARGV[4] or ARGV[3]
if tonumber(reserved) > 9007199254740991 then
  return redis.error_reply('BADFENCE the fence is no integer below 2^53')
end
local holder = redis.call('GET', KEYS[1])
if holder then
  local left = redis.call('PTTL', KEYS[1])
  -- A write that fails, since the key exists: a server that has become a replica then replies
  -- READONLY, not "refused".
  if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then redis.call('DEL', KEYS[1]) end
  -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
  return {0, string.sub(holder, 1, 1088), left}
end
if last and token <= last then
  if not joins then return {2, last} end
  reserved = nil
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
-- The token says nothing about the server's clock.
bad = reserved and store(KEYS[2], reserved)
if bad then
  redis.call('DEL', KEYS[1])
  return bad
end
return {1, token}
