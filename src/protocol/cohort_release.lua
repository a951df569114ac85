-- Releases the lock if the caller holds it: grants it to the first waiter of its queue that a grant
-- reaches, or deletes the key and publishes that. Otherwise removes the place of the caller from
-- the queue, and grants a free lock to the first waiter that a grant reaches.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places
-- ARGV[1] holder id, ARGV[2] wake channel, ARGV[3] given if the lock may be left free for a moment
-- Released, or removed from the queue: 1. Released and left free although clients wait: 2 for a
-- moment, or 3 because a reader is next, to whom this script cannot grant.
-- Otherwise 0 if the lock was free, or the other holder's value.
local holder = redis.call('GET', KEYS[1])
local seen = holder
-- A forced release names a value of more than 1088 bytes as the inspect script does: by its first
-- 1088 bytes and the SHA-1 of the whole.
if holder and #ARGV[1] > 1088 and #holder > 1088 then
  seen = string.sub(holder, 1, 1088) .. redis.sha1hex(holder)
end
if seen == ARGV[1] then
  local reply, message = 1, ARGV[1]
  -- A user without the permission for LINDEX releases as if no client waited in the queue.
  if type(redis.pcall('LINDEX', KEYS[3], '0')) == 'string' then
    local leaves_open, pass_on = open_queue()
    local leaves, is_open = pcall(leaves_open)
    if ARGV[3] and leaves and is_open then
      -- The client of the caller sends a second release 2 ms later, which grants the lock. Clients
      -- that wait recognise `open` and refresh their places.
      reply, message = 2, 'open ' .. ARGV[1]
    else
      local is_held, is_reader_next = pass_on(ARGV[1])
      if is_held then return 1 end
      -- After 3, the calls of this client queue behind the reader for a second: they could
      -- otherwise be the first to acquire the lock again and again. A waiter that a grant does not
      -- reach, for example that of a killed process, does not cause a 3.
      if is_reader_next then reply = 3 end
    end
  end
  redis.call('DEL', KEYS[1])
  -- A user without the PUBLISH permission can still release.
  redis.pcall('PUBLISH', ARGV[2], message)
  return reply
end
if redis.pcall('HDEL', KEYS[4], ARGV[1]) == 1 then
  redis.call('LREM', KEYS[3], 1, ARGV[1])
  local _, pass_on = open_queue()
  pass_on()
  return 1
end
if not holder and type(redis.pcall('LINDEX', KEYS[3], '0')) == 'string' then
  -- An earlier release has left the lock free for 2 ms, which are over now.
  local _, pass_on = open_queue()
  pass_on()
end
rewrite(KEYS[1])
-- A foreign value can be megabytes long. No holder id is longer than this.
return holder and string.sub(holder, 1, 1088) or 0
