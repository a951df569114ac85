-- Ends the function that open_queue.lua begins, which contains the functions of the queue. A script
-- calls it only if it needs them: otherwise Redis would create them in every release.

-- Returns the index, at the time `ms`, of the latest of the moments after which a release leaves
-- the lock free. They are 81 to 99 ms apart. The distance changes all the time, in a cycle of
-- 19.8 s: a program that asks for the lock at regular times must not miss all of them.
local function last_moment(ms)
  local part = ms % 19800 / 19800
  return math.floor(ms / 19800) * 222 + math.floor(200 * part + 22 * part * part)
end

-- Returns whether a release must leave the lock free, for 2 ms, although clients wait in the queue:
-- whether it is the first release after one of the moments. It is if a moment has passed since the
-- holder was granted the lock, and the last token drawn tells when that was.
-- Returns false while one of the first 100 places belongs to a fair lock or a read-write lock,
-- which promise their order to all waiters. Reading more places would delay all other commands.
local function leaves_open()
  read_clock()
  local fence = redis.pcall('GET', KEYS[2])
  local granted = type(fence) == 'string' and tonumber(fence)
  if not granted then return false end
  granted = granted / 1000
  -- A fence ahead of the clock does not tell this: then any release within 11 ms after a moment
  -- leaves the lock free.
  if granted > now + 1 then granted = now - 11 end
  if last_moment(granted) >= last_moment(now) then return false end
  for n = 0, 99 do
    local id = redis.call('LINDEX', KEYS[3], n)
    if not id then break end
    local place = redis.call('HGET', KEYS[4], id) or ''
    local seen, lasts, want = string.match(place, '^(%d+) (%d+) (%S+) %d+ %a ')
    if seen and tonumber(seen) > now then
      set_back(n)
      seen = now
    end
    if seen and seen + lasts > now and string.sub(want, 1, 1) ~= '+' then return false end
  end
  return true
end

-- Ends the hold of this id, if one is given, and grants to the waiters who fit. Returns whether
-- anyone holds the lock then, and whether the next waiter does not fit.
local function pass_on(id)
  settle()
  if id then take_out(id) end
  -- A damaged queue must not keep the lock from being released.
  local _, _, stopped = pcall(grant)
  return holder, stopped
end

return leaves_open, pass_on
end

