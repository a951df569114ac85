-- The fast path of queue_enter.lua for locks: acquires a free lock in whose queue nobody waits.
-- Prepended to the functions of the queue, which Redis would otherwise create in every call.
-- Anything unusual is left to the rest of the script. Until it grants, it writes nothing.
-- A user without the permission for EXISTS has no fast path.
if redis.pcall('EXISTS', KEYS[1], KEYS[3]) == 0 then
  local fence = redis.pcall('GET', KEYS[2])
  local time = redis.call('TIME')
  -- The strings would be converted at each use.
  local s, us = time[1] + 0, time[2] + 0
  if ARGV[3] == 'r' then
    local last = type(fence) == 'string' and string.find(fence, '^%d+$') and tonumber(fence)
    if KEYS[5] and last and last > 0 and last < 9007199254740991 then
      -- As text: Redis 7.2.0 to 7.2.4 write a number that is a multiple of 10^8 with an exponent.
      -- '%.0f' takes twice as long.
      local ends = ARGV[2] + us / 1000
      ends = string.format('%d%03d', s + ends / 1000, ends % 1000)
      -- First: a server whose memory is full refuses it, but would allow any write after another.
      redis.call('SET', KEYS[1], 'leasehold:readers', 'PXAT', ends)
      redis.call('DEL', KEYS[5])
      local kept = redis.pcall('ZADD', KEYS[5], ends, ARGV[1])
      if kept == 1 then kept = redis.pcall('PEXPIREAT', KEYS[5], ends) end
      if kept == 1 then return {1, last} end
      redis.call('DEL', KEYS[1], KEYS[5])
      return kept
    end
  else
    local last = us + ARGV[3] - 1
    -- The last token of the block; as text, as above.
    local token = string.format('%s%06d', time[1], last)
    if last < 1000000
      and (not fence or #fence == #token and fence < token and string.find(fence, '^%d+$')
        and (last == us or tonumber(fence) < s * 1000000 + us))
    then
      local kept = redis.pcall('SET', KEYS[2], token, 'EX', '86400')
      if kept.err then return kept end
      redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
      return {1, s * 1000000 + us}
    end
  end
end

