-- Releases each of several locks that one of the given holder ids holds, and removes the places of
-- the ids; then grants each free lock to the next waiter in its queue.
-- KEYS as in each_name.lua
-- ARGV of a release: the holder id, then the wake channels in the order of the locks
-- ARGV of an undo of several ids: the wake channels, then the holder ids
-- For one id: 1 if it held all locks or had a place; otherwise, for the first lock that it did not
-- hold, 0 if it is free, or the other holder's value.
-- For several ids: a list of that 0 or value for the first lock that none of them held, then the
-- index, from 1, of each id that held a lock or had a place.
-- Errors: WRONGTYPE n if the n-th lock is no string. The other locks of the ids are released.
local ids, channels = {ARGV[1]}, 1
if #ARGV > count + 1 then ids, channels = {unpack(ARGV, count + 1)}, 0 end
local asked, held, placed = {}, {}, {}
for _, id in ipairs(ids) do asked[id] = true end
local other, unreadable
-- Always a write: a server that has become a replica then replies READONLY, not "not yours".
turn_to(1)
local written = redis.pcall('HDEL', KEYS[4], '')
-- Damaged places must not keep the locks from being released.
if written ~= 0 and not string.find(written.err, 'WRONGTYPE', 1, true) then return written end
for n = 1, count do
  local value, bad = read_lock(n)
  holder = value
  if value then settle() end
  unreadable = unreadable or bad
  local id = holder
  if id and asked[id] then
    take_out(id)
    held[id] = (held[id] or 0) + 1
  else
    id = nil
    -- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
    other = other or holder and string.sub(holder, 1, 1088) or 0
  end
  if redis.pcall('LINDEX', KEYS[3], '0') then
    for _, waiter in ipairs(ids) do
      if redis.pcall('HDEL', KEYS[4], waiter) == 1 then
        redis.pcall('LREM', KEYS[3], '1', waiter)
        placed[waiter] = true
      end
    end
    -- A damaged queue must not keep the lock from being released. A grant would overwrite a lock
    -- that cannot be read.
    if not bad then pcall(grant) end
  end
  if id then left(ARGV[channels + n], id) end
end
if unreadable then return unreadable end
if not ids[2] then
  return (held[ids[1]] == count or placed[ids[1]]) and 1 or other or 0
end
local reply = {other or 0}
for n, id in ipairs(ids) do
  if held[id] or placed[id] then reply[#reply + 1] = n end
end
return reply
