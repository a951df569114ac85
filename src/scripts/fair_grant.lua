-- What the scripts of the fair lock have in common; it stands before each of them.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue: the holder ids of those who wait, in their order, KEYS[4] places: for
-- each of them when it was last refreshed, its provisional time, both in ms, and its client's inbox, empty for none
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

-- The next fencing token. Or nil and an error: BADFENCE where the fence holds no integer below 2^53.
local function draw()
  local fence = redis.pcall('GET', KEYS[2])
  if type(fence) == 'table' then
    if string.find(fence.err, 'WRONGTYPE', 1, true) then
      return nil, redis.error_reply('BADFENCE the fence is no string')
    end
    return nil, fence
  end
  if not fence then return micros end
  local last = tonumber(fence)
  -- 2^53: from there on a Lua number skips integers, and two holders could share a token.
  if not string.find(fence, '^%d+$') or last >= 9007199254740991 then
    return nil, redis.error_reply('BADFENCE the fence is no integer below 2^53')
  end
  return math.max(micros, last + 1)
end

-- A queue of nothing but the dead ends by itself: twice the longest provisional time after the last sign of life.
local function keep()
  redis.call('PEXPIRE', KEYS[3], 6000)
  redis.call('PEXPIRE', KEYS[4], 6000)
end

-- The first place that is alive, its provisional time and its inbox. Takes out the dead ones before it.
local function first()
  while true do
    local id = redis.call('LINDEX', KEYS[3], 0)
    if not id then return nil end
    local seen, provisional, inbox = string.match(redis.call('HGET', KEYS[4], id) or '', '^(%d+) (%d+) (.*)$')
    if seen and now - seen < tonumber(provisional) then return id, provisional, inbox end
    redis.call('HDEL', KEYS[4], id)
    redis.call('LPOP', KEYS[3])
  end
end

-- Makes the first place that is alive the holder of a lock that is free, and tells its client. Returns its holder id and
-- its fencing token; nil where nobody waits; nil and an error, and nothing is held.
local function grant()
  local id, provisional, inbox = first()
  if not id then return nil end
  local token, bad = draw()
  if bad then return nil, bad end
  -- In this order: where a right is missing, an id without a place is dead, and a place without an id waits for ever.
  redis.call('HDEL', KEYS[4], id)
  redis.call('LPOP', KEYS[3])
  redis.call('SET', KEYS[1], id, 'PX', provisional)
  local kept = redis.pcall('SET', KEYS[2], token, 'EX', 86400)
  if kept.err then
    redis.call('DEL', KEYS[1])
    return nil, kept
  end
  if inbox ~= '' then
    -- A user without the right to publish still grants: the next refresh tells.
    redis.pcall('PUBLISH', inbox, string.format('grant %.0f %s', token, id))
  end
  return id, token
end

