-- Acquires a free lock alone, under the next block of fencing tokens. Prepended to acquire.lua, and
-- behind enter_free.lua to queue_enter.lua: before the functions of the queue, which Redis would
-- otherwise create in every call. What it leaves undone is left to the rest of the script.
if #KEYS == 2 or not is_for_queue then
  local more = ARGV[3] and ARGV[3] ~= '1' and ARGV[3] - 1 or 0
  -- First: a server whose memory is full refuses it, but would allow any write after another. If
  -- the lock is held, still a write: a server that has become a replica replies READONLY.
  local taken = redis.pcall('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
  if taken and taken.ok then
    local time = redis.pcall('TIME')
    if time.err then
      redis.call('DEL', KEYS[1])
      return time
    end
    local now = time[1] * 1000000 + time[2]
    -- The last token of the block. As text: Redis 7.2.0 to 7.2.4 write a number that is a
    -- multiple of 10^8 with an exponent. '%.0f' takes as long as a command.
    local text = more == 0 and #time[2] == 6 and time[1] .. time[2]
      or string.format('%.0f', now + more)
    local fence = redis.pcall('SET', KEYS[2], text, 'KEEPTTL', 'GET')
    local bad = fence and fence.err
    local last = fence and not bad and tonumber(fence)
    -- The first grant of each hour renews the expiry, which lasts an hour longer than a day. It can
    -- end earlier once a clock that was set back has reached its old tokens.
    if last and last < now and last >= now - now % 3600000000 then return {1, now} end
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
      now = math.max(now, (last or 0) + 1)
      bad = redis.pcall('SET', KEYS[2], string.format('%.0f', now + more), 'EX', '90000').err
      if not bad then return {1, now} end
    end
    redis.call('DEL', KEYS[1])
    return {err = bad}
  end
  if taken and #KEYS == 2 then return taken end
end

