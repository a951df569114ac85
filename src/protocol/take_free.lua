-- Acquires a free lock alone, under the next block of fencing tokens. Prepended to acquire.lua, and
-- behind enter_free.lua to queue_enter.lua: before the functions of the queue, which Redis would
-- otherwise create in every call. What it leaves undone is left to the rest of the script.
if #KEYS == 2 or not is_for_queue then
  -- Lua looks up a global by its name at each use.
  local redis, KEYS, ARGV = redis, KEYS, ARGV
  -- First: a server whose memory is full refuses it, but would allow any write after another. If
  -- the lock is held, still a write: a server that has become a replica replies READONLY.
  local taken = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
  if taken and taken.ok then
    local time = redis.pcall('TIME')
    if time.err then
      redis.call('DEL', KEYS[1])
      return time
    end
    local more = ARGV[3] and ARGV[3] ~= '1' and ARGV[3] - 1 or 0
    -- Tokens are text of 16 digits: to format or to convert one takes a third as long as a command.
    -- Redis 7.2.0 to 7.2.4 write a number that is a multiple of 10^8 with an exponent.
    local seconds, micros = time[1], time[2]
    if #micros < 6 then micros = string.sub('00000' .. micros, -6) end
    local token = seconds .. micros
    -- The last token of the block.
    local text = more == 0 and token or string.format('%.0f', token + more)
    local fence = redis.pcall('SET', KEYS[2], text, 'KEEPTTL', 'GET')
    -- Of the same length, texts compare as numbers do. The first grant of each 1000 s renews the
    -- expiry, which lasts an hour longer than a day. It can end earlier once a clock that was set
    -- back has reached its old tokens.
    if fence and #fence == 16 and fence < token and fence > string.sub(seconds, 1, 7) then
      return token
    end
    local bad = fence and fence.err
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
      bad = redis.pcall('SET', KEYS[2], string.format('%.0f', first + more), 'EX', '90000').err
      if not bad then return string.format('%.0f', first) end
    end
    redis.call('DEL', KEYS[1])
    return {err = bad}
  end
  if taken and #KEYS == 2 then return taken end
end

