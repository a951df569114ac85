-- Adds a client's counts to the shared statistics.
-- KEYS[1] hash of the statistics
-- ARGV fields and counts, in turns
-- Added: 1. An error of HINCRBY: the fields that it is not about were added.
local refused
for i = 1, #ARGV, 2 do
  local answer = redis.pcall('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1])
  -- A field that holds no integer must not keep the others from being added.
  if type(answer) == 'table' then
    refused = answer
  end
end
return refused or 1
