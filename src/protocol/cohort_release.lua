-- Releases the lock if the caller holds it: grants it to the first waiter of its queue that a grant
-- reaches, or deletes the key and publishes that. Otherwise removes the place of the caller from
-- the queue, and grants a free lock to the first waiter that a grant reaches.
-- KEYS[1] lock, KEYS[2] fence, KEYS[3] queue, KEYS[4] places, KEYS[5] readers
-- ARGV[1] holder id, ARGV[2] wake channel, ARGV[3] given if this may be a plain release
-- Released, or removed from the queue: 1. Released by a plain release, although clients wait: 2.
-- Otherwise 0 if the lock was free, or the other holder's value.
-- leave_free.lua runs before this, and sets `out` if it has ended the hold.
settle()
out = out or take_out(ARGV[1])
if out then
  local is_read, message = false, nil
  if ARGV[3] then is_read, message = pcall(plain_message) end
  if is_read and message
    -- Without the permission for PUBLISH, no client would learn that it must ask.
    and type(redis.pcall('PUBLISH', ARGV[2], message)) == 'number'
  then
    redis.call('DEL', KEYS[1])
    -- The message may reach the client of the caller later than this reply, which says that its
    -- calls must not ask at once.
    return 2
  end
  -- A damaged queue must not keep the lock from being released.
  pcall(grant)
  left(ARGV[2], ARGV[1])
  return 1
end
if redis.pcall('HDEL', KEYS[4], ARGV[1]) == 1 then
  redis.call('LREM', KEYS[3], 1, ARGV[1])
  pcall(grant)
  return 1
end
rewrite(KEYS[1])
-- A foreign value can be megabytes long. No holder id is longer than this.
return holder and string.sub(holder, 1, 1088) or 0
