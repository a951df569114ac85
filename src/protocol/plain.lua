-- When a release of a mutex is a plain one. Prepended to the release script of mutexes.

-- Returns the number of the line of a grid that comes before the time `ms`. The lines are 90 ms
-- apart. The grid moves every 3 s, by 88 ms: a program that asks for the lock at regular times must
-- not miss all plain releases.
local function line_before(ms)
  return math.floor((ms + 88 * math.floor(ms / 3000)) / 90)
end

-- Returns the message of a plain release; nil if the release must grant the lock. The message
-- names the place whose client must ask for the lock first, and how many clients wait, up to 100:
-- the more there are, the fewer of the others ask soon.
-- A plain release deletes the key although clients wait in the queue, so that programs outside the
-- queue can acquire the lock.
-- It is due if a line of the grid has passed since the holder was granted the lock. The last token
-- drawn tells when that was.
-- Returns nil while one of the first 100 places belongs to a fair lock or a read-write lock,
-- which promise their order to all waiters. Reading more places would delay all other commands.
local function plain_message()
  read_clock()
  fence = redis.pcall('GET', KEYS[2])
  local granted = type(fence) == 'string' and tonumber(fence)
  if not granted then return nil end
  granted = granted / 1000
  -- A fence ahead of the clock does not tell this: then any release within 11 ms after a line is a
  -- plain one.
  if granted > now + 1 then granted = now - 11 end
  if line_before(granted) >= line_before(now) then return nil end
  local first, reached, waiting = nil, nil, 0
  for n = 0, 99 do
    local id = redis.call('LINDEX', KEYS[3], n)
    if not id then break end
    local place = redis.call('HGET', KEYS[4], id) or ''
    local seen, lasts, want, mark, inbox =
      string.match(place, '^(%d+) (%d+) (%S+) %d+ (%a) (.*)$')
    if seen and tonumber(seen) > now then
      set_back(n)
      seen = now
    end
    if seen and seen + lasts > now then
      if string.sub(want, 1, 1) ~= '+' then return nil end
      first, waiting = first or id, waiting + 1
      -- No message reaches the client of another place.
      if mark ~= 'p' and inbox ~= '' then reached = reached or id end
    end
  end
  return first and 'next ' .. waiting .. ' ' .. (reached or first)
end

