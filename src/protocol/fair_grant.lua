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

-- The provisional time and the inbox of a place that is alive, nil for one that is dead.
local function alive(id)
  local seen, provisional, inbox = string.match(redis.call('HGET', KEYS[4], id) or '', '^(%d+) (%d+) (.*)$')
  if seen and now - seen < tonumber(provisional) then return provisional, inbox end
end

-- Whether anybody in the queue is alive. Takes out the dead ones before the first who is.
local function waited_for()
  while true do
    local id = redis.call('LINDEX', KEYS[3], 0)
    if not id then return false end
    if alive(id) then return true end
    redis.call('LPOP', KEYS[3])
    redis.call('HDEL', KEYS[4], id)
  end
end

-- Makes the first place that is alive the holder, whoever was it before, and tells its client. Returns its holder id and
-- its fencing token; nil where nobody waits; nil and an error, and nobody was made the holder.
local function grant()
  while true do
    -- Deleting comes first: then a server whose memory is full lets the rest be written.
    local id = redis.call('LPOP', KEYS[3])
    if not id then return nil end
    local provisional, inbox = alive(id)
    redis.call('HDEL', KEYS[4], id)
    if provisional then
      local token, bad = draw()
      -- Who is out of the queue for this enters again, and is told.
      if bad then return nil, bad end
      local kept = redis.pcall('SET', KEYS[2], token, 'EX', 86400)
      if kept.err then return nil, kept end
      redis.call('SET', KEYS[1], id, 'PX', provisional)
      if inbox ~= '' then
        -- A user without the right to publish still grants: the next refresh tells.
        redis.pcall('PUBLISH', inbox, string.format('grant %.0f %s', token, id))
      end
      return id, token
    end
  end
end

