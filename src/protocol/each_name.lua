-- Shared by the scripts of several locks with queues; prepended to each of them. The functions in
-- the files after it act on one name at a time, and see its lock, fence, queue, places and readers
-- as KEYS[1] to KEYS[5].
-- KEYS the locks, then the fences, the queues, the places and the readers, in the same order
local all = KEYS
local count = #all / 5
local KEYS = {}

-- Makes the functions act on the n-th name.
local function turn_to(n)
  for kind = 0, 4 do KEYS[kind + 1] = all[kind * count + n] end
end

-- Turns to the n-th name. Returns the value of its lock, or false if the lock is free. Returns nil
-- and an error if the lock cannot be read: WRONGTYPE n if it is no string.
local function read_lock(n)
  turn_to(n)
  local value = redis.pcall('GET', all[n])
  if type(value) ~= 'table' then return value end
  if not string.find(value.err, 'WRONGTYPE', 1, true) then return nil, value end
  return nil, redis.error_reply('WRONGTYPE ' .. n .. ' the lock is no string')
end
