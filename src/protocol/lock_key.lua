-- Shared by the admissions to a lock and to a read-write lock. Prepended to the scripts of their
-- queues, after the file that declares `holder`, the value of the lock key, and `drawn`, the last
-- token: admit_lock.lua or readers.lua.
-- KEYS[1] lock

-- Ends the hold of `id` if `id` is the value of the lock key, and returns whether it was. The key
-- itself stays: a grant replaces it, or `left` deletes it.
local function take_out(id)
  local value = holder
  -- A forced release names a value of more than 1088 bytes as the inspect script does: by its first
  -- 1088 bytes and the SHA-1 of the whole.
  if value and #id > 1088 and #value > 1088 then
    value = string.sub(value, 1, 1088) .. redis.sha1hex(value)
  end
  if not value or value ~= id then return false end
  holder = nil
  return true
end

-- Deletes the lock key after `take_out`, and publishes the release. Does nothing if other readers
-- still hold the lock, or a grant has given it to a waiter.
local function left(channel, id)
  if holder then return end
  redis.call('DEL', KEYS[1])
  -- A user without the PUBLISH permission can still release.
  redis.pcall('PUBLISH', channel, id)
end

-- Returns in how many ms the lock expires: -1 without an expiry, -2 if it is free. Then returns for
-- how many ms a holder of one has held it: negative if that is not known.
local function soonest()
  local age = drawn and math.floor((micros - drawn) / 1000) or -1
  return redis.call('PTTL', KEYS[1]), age
end

