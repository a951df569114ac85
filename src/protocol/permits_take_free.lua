-- Takes the permits for which permits_enter_free.lua has found room. Follows draw_free.lua, whose
-- command is the first write: a server whose memory is full refuses it, but would allow any after
-- it.
if bad then return {err = bad} end
if token then
  local redis, string, KEYS, ARGV = redis, string, KEYS, ARGV -- as in take_free.lua
  local till = now + ARGV[2]
  local ends = string.format('%d%03d', till / 1000, till % 1000)
  -- As text if possible.
  local out = used == 0 and k or used + k
  if redis.call('ZADD', KEYS[1], '-' .. out, 'out', ends, ARGV[1]) == 0 then
    -- The network has run the call twice: its first run has counted these permits.
    out = used
    redis.call('ZADD', KEYS[1], '-' .. out, 'out')
  end
  -- The key lasts until the last permit ends.
  if now + left > till then ends = string.format('%.0f', now + left) end
  local kept = redis.pcall('PEXPIREAT', KEYS[1], ends)
  if kept == 1 then return token end
  -- The call fails, so nobody would give these permits back.
  redis.call('ZREM', KEYS[1], ARGV[1])
  if out - k > 0 then
    redis.call('ZADD', KEYS[1], '-' .. out - k, 'out')
  else
    redis.call('DEL', KEYS[1])
  end
  return kept
end

