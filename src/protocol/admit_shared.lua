-- The admission to a read-write lock: one writer, or any number of readers. Prepended to the
-- scripts of its queue, in place of admit_lock.lua, behind readers.lua and lock_key.lua.
-- KEYS[1] lock, KEYS[2] fence, KEYS[5] readers
-- A waiter whose want is `r` reads. Any other waiter writes, and wants a block of fencing tokens,
-- given by its size.

-- Whether `draw` drew a new token for a reader, which `store` must then keep.
local is_drawn

-- Returns whether a waiter with this want fits; without a want, whether any waiter can fit.
local function fits(want)
  if holder then return holder == FLAG and (not want or want == 'r') end
  return not want or want == 'r' or tonumber(want) ~= nil
end

-- Returns a reader's token, or the first token of the next block of a writer. Otherwise nil and an
-- error: BADFENCE if the fence holds no integer that, with the block, is below 2^53.
-- A reader has the last token drawn, that of the writer before it. If there is none, it draws one.
local function draw(want)
  local more = want == 'r' and 0 or want - 1
  local last, bad = last_token(KEYS[2], '', more)
  if bad then return nil, bad end
  drawn = last
  is_drawn = want == 'r' and (last or 0) == 0
  if want == 'r' and not is_drawn then return last end
  return math.max(micros, (last or 0) + 1)
end

-- Keeps the last token of a block in the fence; returns an error if Redis refuses.
local function store(last)
  -- As text, as in acquire.lua.
  local kept = redis.pcall('SET', KEYS[2], string.format('%.0f', last), 'EX', '86400')
  is_drawn = false
  if kept.err then return kept end
end

-- Makes a client a holder for this many ms, under a token from `draw`. If Redis refuses, returns an
-- error: then the client is no holder.
local function hold(id, want, ms, token)
  local bad
  if want ~= 'r' then
    bad = store(token + want - 1)
  elseif is_drawn then
    -- The next writer's token must be above it.
    bad = store(token)
  end
  if bad then return bad end
  if want == 'r' then
    bad = join(id, now + ms)
    -- The call fails, so nobody would end this read lock.
    if bad then redis.call('ZREM', readers, id) end
    return bad
  else
    redis.call('SET', KEYS[1], id, 'PX', ms)
    holder, drawn = id, token
  end
end

-- Returns the token of the client if it holds the lock; nil if it does not; nil and an error.
local function held(id)
  if holder ~= id and not (holder == FLAG and redis.call('ZSCORE', KEYS[5], id)) then
    return nil
  end
  -- The last token drawn is the holder's. If someone deleted the fence, a new token serves.
  local token, bad = draw('r')
  if is_drawn and not bad then bad = store(token) end
  if bad then return nil, bad end
  return token
end

local take_out_writer = take_out

-- Ends the hold of `id`, a writer or a reader, and returns whether it had one. A forced release of
-- all readers names the flag: they do not count without it, as readers.lua says.
local function take_out(id)
  if holder ~= FLAG or id == FLAG then return take_out_writer(id) end
  if redis.call('ZREM', KEYS[5], id) == 0 then return false end
  -- A cluster that migrates the slot refuses access to a key that does not exist.
  if redis.pcall('EXISTS', KEYS[5]) ~= 1 then holder = nil end
  return true
end

