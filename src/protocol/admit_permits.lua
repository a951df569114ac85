-- The admission to a semaphore: as many holders as its permits allow. Prepended to the scripts of
-- its queue, which call these functions and know nothing else of the semaphore.
-- KEYS[1] permits: a sorted set with a member for each holder, and `out` in front of them
--   member "<k> <owner>:<uuid>", the holder id: holds k permits; its score is when they end, in ms
--   member "out": its score is minus the number of permits that are out
-- KEYS[2] fence
-- A waiter wants "<k>/<n>": k permits, if with them at most n are out. The number n belongs to the
-- waiter and is stored nowhere else.

-- No single value stands for the holders.
holder = false

-- How many permits are out.
local used

-- `out` and the member that ends first, with their scores; nil if the script has changed the set
-- since it has read them.
local first

-- Reads how many permits are out, after removing those that have ended.
local function settle()
  read_clock()
  local found = redis.call('ZRANGE', KEYS[1], '0', '1', 'WITHSCORES')
  used = found[4] and found[1] == 'out' and tonumber(found[4]) >= now and -found[2] or 0
  if used > 0 or not found[1] then
    first = found
    return
  end
  repeat
    found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. now, 'WITHSCORES', 'LIMIT', '0',
      '1001')
    used = found[1] == 'out' and -found[2] or 0
    local ended, sum = {}, 0
    for n = 3, #found, 2 do
      ended[#ended + 1] = found[n]
      sum = sum + (string.match(found[n], '^(%d+) ') or 0)
    end
    if used <= sum then
      -- All have ended, or someone else has written here: then no holder keeps its permits.
      -- DEL only if the key exists: after any write, even one that changes nothing, a server whose
      -- memory is full allows the further writes of the script. It must refuse a new holder.
      if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('DEL', KEYS[1]) end
      used = 0
      return
    end
    if #ended > 0 then
      redis.call('ZREM', KEYS[1], unpack(ended))
      used = used - sum
      redis.call('ZADD', KEYS[1], -used, 'out')
    end
  until #found < 2002
end

-- Returns whether a waiter with this want fits; without a want, whether any waiter may fit.
local function fits(want)
  if not want then return true end
  local k, n = string.match(want, '^(%d+)/(%d+)$')
  return k and used + k <= tonumber(n)
end

-- Returns the next token, or nil and an error: BADFENCE if the fence holds no integer below
-- 2^53 - 1.
local function draw()
  local last, bad = last_token(KEYS[2], '', 0)
  if bad then return nil, bad end
  drawn = last
  return math.max(micros, (last or 0) + 1)
end

-- Takes back the permits that the client has, and returns whether it had any.
local function take_out(id)
  local k = string.match(id, '^(%d+) ')
  if not k or redis.call('ZREM', KEYS[1], id) == 0 then return false end
  first, used = nil, used - k
  if used > 0 then
    redis.call('ZADD', KEYS[1], -used, 'out')
  else
    redis.call('DEL', KEYS[1])
  end
  return true
end

-- Gives a client the permits that it wants for this many ms, under a token from `draw`. If Redis
-- refuses, returns an error: then the client has no permits.
local function hold(id, want, ms, token)
  local bad = store(KEYS[2], token, drawn, micros)
  if bad then return bad end
  first = nil
  local more = used + string.match(want, '^%d+')
  local new = redis.call('ZADD', KEYS[1], -more, 'out', now + ms, id)
  if new < (used == 0 and 2 or 1) then
    -- The network has run the call twice: its first run has counted these permits.
    redis.call('ZADD', KEYS[1], -used, 'out')
  else
    used = more
  end
  -- The key lasts until the last permit ends.
  local ends = string.format('%.0f', later_end(KEYS[1], now + ms))
  local kept = redis.pcall('PEXPIREAT', KEYS[1], ends)
  if type(kept) == 'table' then
    -- The call fails, so nobody would give these permits back.
    take_out(id)
    return kept
  end
end

-- Returns a token of the client if it has permits; nil if it has none; nil and an error.
local function held(id)
  if not redis.call('ZSCORE', KEYS[1], id) then return nil end
  -- The message or reply with its first token is lost or on its way. Others may have drawn tokens
  -- since, so it gets a new one.
  local token, bad = draw()
  bad = bad or store(KEYS[2], token, drawn, micros)
  if bad then return nil, bad end
  return token
end

-- Publishes nothing: every waiter has a place, and only a grant ends its wait.
local function left() end

-- Returns in how many ms the first permits end, -2 if nobody holds any; and how many are out.
local function soonest()
  first = first or redis.call('ZRANGE', KEYS[1], '0', '1', 'WITHSCORES')
  -- Another program may have written any score.
  local out_now = math.max(math.min(used, 2 ^ 53), -1)
  return first[4] and math.min(first[4] - now, 2 ^ 53) or -2, out_now
end

