-- The functions that the scripts of the fair lock share; prepended to each of them.
-- KEYS[1] lock, KEYS[2] fence
-- KEYS[3] queue: a list of the waiters' holder ids, first in line first
-- KEYS[4] places: a hash from holder id to "refreshed provisional inbox": when the place was last
-- refreshed and its provisional time, both in ms, and the client's inbox, empty for none
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

-- Returns the next fencing token, or nil and an error: BADFENCE if the fence holds no integer below
-- 2^53.
local function draw()
  local last, bad = last_token(KEYS[2], '', 0)
  if bad then return nil, bad end
  return math.max(micros, (last or 0) + 1)
end

-- Makes a queue expire in which all waiters have died: 6000 ms after the last refresh, twice the
-- longest provisional time.
local function keep()
  redis.call('PEXPIRE', KEYS[3], 6000)
  redis.call('PEXPIRE', KEYS[4], 6000)
end

-- Returns the provisional time and the inbox of a live place, or nil for one whose refresh is
-- overdue.
local function alive(id)
  local place = redis.call('HGET', KEYS[4], id) or ''
  local seen, provisional, inbox = string.match(place, '^(%d+) (%d+) (.*)$')
  if seen and now - seen < tonumber(provisional) then return provisional, inbox end
end

-- Returns whether the queue has a live place, and removes the dead ones before the first live one.
local function waited_for()
  while true do
    local id = redis.call('LINDEX', KEYS[3], 0)
    if not id then return false end
    if alive(id) then return true end
    redis.call('LPOP', KEYS[3])
    redis.call('HDEL', KEYS[4], id)
  end
end

-- Grants the lock to the first live place, replacing any current holder, and notifies its client.
-- Returns its holder id and fencing token; nil if no client waits; nil and an error if the grant
-- failed and no waiter became the holder.
local function grant()
  while true do
    -- A deletion first: a server whose memory is full allows it, and then the other writes too.
    local id = redis.call('LPOP', KEYS[3])
    if not id then return nil end
    local provisional, inbox = alive(id)
    redis.call('HDEL', KEYS[4], id)
    if provisional then
      local token, bad = draw()
      -- The waiter has left the queue: it joins again and receives this error.
      if bad then return nil, bad end
      local kept = redis.pcall('SET', KEYS[2], token, 'EX', 86400)
      if kept.err then return nil, kept end
      redis.call('SET', KEYS[1], id, 'PX', provisional)
      if inbox ~= '' then
        -- A user without the PUBLISH permission can still grant: the next refresh reports it.
        redis.pcall('PUBLISH', inbox, string.format('grant %.0f %s', token, id))
      end
      return id, token
    end
  end
end

