-- Shared by the admissions to a lock and to a read-write lock. Prepended to the scripts of their
-- queues, behind the functions that know `holder`, the value of the lock key.
-- KEYS[1] lock

-- Ends the hold that is the value of the lock key, and returns whether this client has it. The key
-- stays until `left`: a grant replaces it.
local function take_out(id)
  local value = holder
  -- A forced release names a longer value as the inspect script does: by its start and its digest.
  if value and #id > 1088 and #value > 1088 then
    value = string.sub(value, 1, 1088) .. redis.sha1hex(value)
  end
  if not value or value ~= id then return false end
  holder = nil
  return true
end

-- Frees the lock after `take_out` unless others hold it or it was granted since, and announces
-- that.
local function left(channel, id)
  if holder then return end
  redis.call('DEL', KEYS[1])
  -- A user without the PUBLISH permission can still release.
  redis.pcall('PUBLISH', channel, id)
end

-- Returns in how many ms the lock expires: -1 without an expiry, -2 if it is free.
local function soonest()
  return redis.call('PTTL', KEYS[1])
end

