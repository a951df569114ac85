-- The fast path of queue_enter.lua for locks: acquires a free lock in whose queue nobody waits, for
-- a reader; take_free.lua, which follows, for any other. Prepended to the functions of the queue,
-- which Redis would otherwise create in every call. Anything unusual is left to the rest of the
-- script. Until it grants, it writes nothing.
-- A user without the permission for EXISTS has no fast path.
local is_for_queue
do
  local redis, KEYS, ARGV = redis, KEYS, ARGV -- as in take_free.lua
  is_for_queue = ARGV[3] == 'r'
  if not is_for_queue then
    is_for_queue = redis.pcall('EXISTS', KEYS[1], KEYS[3]) ~= 0
  elseif KEYS[5] and redis.pcall('EXISTS', KEYS[1], KEYS[3], KEYS[5]) == 0 then
    local fence = redis.pcall('GET', KEYS[2])
    -- Such a token is below 2^53.
    if fence and #fence == 16 and string.find(fence, '^[1-8]%d+$') then
      local time = redis.call('TIME')
      -- As text, as in draw_free.lua.
      local ends = ARGV[2] + time[2] / 1000
      ends = string.format('%d%03d', time[1] + ends / 1000, ends % 1000)
      -- First: a server whose memory is full refuses it, but would allow any write after another.
      redis.call('SET', KEYS[1], 'leasehold:readers', 'PXAT', ends)
      local kept = redis.pcall('ZADD', KEYS[5], ends, ARGV[1])
      if kept == 1 then kept = redis.pcall('PEXPIREAT', KEYS[5], ends) end
      if kept == 1 then return fence end
      redis.call('DEL', KEYS[1], KEYS[5])
      return kept
    end
  end
end

