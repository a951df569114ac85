-- The readers of a read-write lock; prepended to its scripts.
-- KEYS[1] lock: the value of a writer, or this flag while readers hold
-- The last of KEYS: the readers, a sorted set from holder id to the end of its lease, in ms
-- The lock key is authoritative. The readers count only while it contains the flag, and a new flag
-- begins without readers: a reader whose flag was deleted must not hold again under the next one.
-- The flag keeps out every program that acquires the lock with SET NX. It ends no earlier than the
-- reader that ends last, and so does the set.
local FLAG = 'leasehold:readers'
local readers = KEYS[#KEYS]

-- The value of the lock key; false if the lock is free.
local holder

-- The last token drawn, once `draw` of the admission has read the fence; nil if there is none.
local drawn

-- Reads the holder of the lock, and drops the readers whose lease has ended.
local function settle()
  holder = redis.call('GET', KEYS[1])
  if holder ~= FLAG then return end
  read_clock()
  redis.call('ZREMRANGEBYSCORE', readers, '-inf', '(' .. now)
  if redis.call('EXISTS', readers) == 0 then
    redis.call('DEL', KEYS[1])
    holder = false
  end
end

-- Makes a client a reader until `till`, in ms. Returns an error if Redis refuses: the client is
-- among the readers then, but the lock key is as before.
local function join(id, till)
  local ends = till
  if holder == FLAG then
    -- Never an earlier end: the other readers need the flag, too.
    ends = later_end(KEYS[1], till)
  else
    redis.call('DEL', readers)
  end
  redis.call('ZADD', readers, till, id)
  -- As text, as in acquire.lua.
  ends = string.format('%.0f', ends)
  local kept = redis.pcall('PEXPIREAT', readers, ends)
  if type(kept) == 'table' then return kept end
  kept = redis.pcall('SET', KEYS[1], FLAG, 'PXAT', ends)
  if kept.err then return kept end
  holder = FLAG
end

