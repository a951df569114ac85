-- The admission to a lock: one holder at a time. Prepended to the scripts of its queue. Those that
-- also serve other admissions know the lock only through this file and lock_key.lua.
-- KEYS[1] lock, KEYS[2] fence
-- A waiter wants a block of fencing tokens, given by its size; a grant reserves the whole block.

-- The value of the lock key; false or nil if the lock is free.
local holder

-- The last token drawn, once `draw` has read the fence; nil if there is none.
local drawn

-- Reads the holder of the lock.
local function settle()
  holder = redis.call('GET', KEYS[1])
end

-- Returns whether a waiter with this want fits; without a want, whether any waiter can fit. The
-- want of a reader is no number, so a reader never fits here: only the scripts of its own kind
-- admit it. A release frees the lock for it and publishes that, and its client refreshes at once.
local function fits(want)
  return not holder and (not want or tonumber(want) ~= nil)
end

-- Returns the first token of the next block, or nil and an error: BADFENCE if the fence holds no
-- integer that, with the block, is below 2^53.
local function draw(want)
  local last, bad = last_token(KEYS[2], '', want - 1)
  if bad then return nil, bad end
  drawn = last
  return math.max(micros, (last or 0) + 1)
end

-- Makes a client the holder for this many ms, under a token from `draw`, a number or its digits. If
-- Redis refuses, returns an error: then the client is not the holder.
local function hold(id, want, ms, token)
  -- As text, as in acquire.lua.
  local last = string.format('%.0f', token + want - 1)
  local kept = redis.pcall('SET', KEYS[2], last, 'EX', '86400')
  if kept.err then return kept end
  redis.call('SET', KEYS[1], id, 'PX', ms)
  holder, drawn = id, token
end

-- Returns the last token of the client's block if it holds the lock; nil if it does not; nil and an
-- error if the fence cannot be used.
local function held(id)
  if holder ~= id then return nil end
  -- Nobody has drawn a token since. If someone deleted the fence, a new token serves.
  local last, bad = last_token(KEYS[2], '', 0)
  if bad then return nil, bad end
  return last or micros
end

