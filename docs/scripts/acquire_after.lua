-- Goes on only if the lock before has its holder: this lock is one of several that are needed
-- together, and the caller asks for them in one order. Prepended to take_free.lua and acquire.lua,
-- which then find their own keys and arguments only.
-- KEYS[3] the lock before, ARGV[3] its holder id
-- Skipped: 0. Then a command before it was refused, has failed, or was undone.
if redis.call('GET', KEYS[3]) ~= ARGV[3] then return 0 end
KEYS[3], ARGV[3] = nil, nil

-- Acquires a free lock alone. Prepended to acquire.lua, and behind enter_free.lua to
-- queue_enter.lua: before the functions of the queue, which Redis would otherwise create in every
-- call. Behind it, draw_free.lua draws the tokens, and end_free.lua replies. What these leave
-- undone is left to the rest of the script.

-- The reply to TIME once the lock is taken, and how many tokens follow the first one.
local time, more
if #KEYS == 2 or not is_for_queue then
  -- Lua looks up a global by its name at each use.
  local redis, KEYS, ARGV = redis, KEYS, ARGV
  -- First: a server whose memory is full refuses it, but would allow any write after another. If
  -- the lock is held, still a write: a server that has become a replica replies READONLY.
  local taken = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
  if taken and taken.ok then
    time = redis.pcall('TIME')
    more = ARGV[3] and ARGV[3] ~= '1' and ARGV[3] - 1 or 0
  elseif taken and #KEYS == 2 then
    return taken
  end
end

-- Draws the tokens of a fast path, in one command; the others draw as last_token.lua says. Follows
-- take_free.lua and permits_enter_free.lua, which set `time` if they need a token.

-- The first token, as text, or the text of an error: then the fence is as before.
local token, bad
if time then
  bad = time.err
  if not bad then
    -- Tokens are text of 16 digits: to format or to convert one takes a third as long as a command.
    -- Redis 7.2.0 to 7.2.4 write a number that is a multiple of 10^8 with an exponent.
    local seconds, micros = time[1], time[2]
    -- The last token of the block.
    local text = more > 0 and micros + more
    if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
    token = seconds .. micros
    if not text then
      text = token
    elseif text < 1000000 then
      text = seconds .. string.format('%06d', text)
    else
      text = string.format('%.0f', token + more)
    end
    local fence = redis.pcall('SET', KEYS[2], text, 'KEEPTTL', 'GET')
    -- The rule of `store` in last_token.lua. Of the same length, texts compare as numbers do.
    if not (fence and #fence == 16 and fence < token and fence > string.sub(seconds, 1, 7)
      and string.match(fence, '^%d+$', 8))
    then
      bad = fence and fence.err
      local last = fence and not bad and tonumber(fence)
      -- From 2^53 on, a Lua number skips integers, and two holders could share a token.
      if bad and string.find(bad, 'WRONGTYPE', 1, true) then
        bad = 'BADFENCE the fence is no string'
      elseif not bad and fence
        and not (last and string.find(fence, '^%d+$') and last + more < 9007199254740991)
      then
        redis.call('SET', KEYS[2], fence, 'KEEPTTL')
        bad = 'BADFENCE the fence is no integer below 2^53'
      end
      if not bad then
        local first = math.max(tonumber(token), (last or 0) + 1)
        local option, lasts = 'EX', '90000'
        if first - token > 0 then
          option, lasts = 'PXAT', string.format('%.0f', math.floor(first / 1000) + 90000000)
        end
        token = string.format('%.0f', first)
        bad = redis.pcall('SET', KEYS[2], string.format('%.0f', first + more), option, lasts).err
      end
    end
  end
end

-- Replies with the token of a lock that take_free.lua has taken, or gives the lock back. Follows
-- draw_free.lua.
if bad then
  redis.call('DEL', KEYS[1])
  return {err = bad}
end
if token then return token end

-- Acquires the lock and draws its fencing token, in one step.
-- KEYS[1] lock, KEYS[2] fence
-- ARGV[1] holder id, ARGV[2] ttl in ms, ARGV[3] number of tokens to reserve (default 1)
-- Granted, by take_free.lua, which runs before this: the first token, as text.
-- Refused: {0, value of the lock key, its ttl in ms or -1, ms since the last token was drawn}. The
-- last number is negative if that is not known.
-- Errors: BADFENCE if the fence holds no integer that, with the reserved tokens, is below 2^53.
-- After any error the lock is not held.
local holder = redis.call('GET', KEYS[1])
local fence = redis.pcall('GET', KEYS[2])
local time = redis.call('TIME')
local last = type(fence) == 'string' and tonumber(fence)
local age = last and math.floor((time[1] * 1000000 + time[2] - last) / 1000) or -1
-- A foreign value can be megabytes long; no holder id of leasehold is longer than 1088 bytes.
return {0, holder and string.sub(holder, 1, 1088), redis.call('PTTL', KEYS[1]), age}
