-- Shared by the scripts of the readers of several locks; prepended to them. The functions in the
-- files after it act on one lock at a time, and see its key and that of its readers as KEYS[1] and
-- KEYS[5].
-- KEYS each lock, followed by its readers
local all = KEYS
local KEYS = {}

-- Makes the functions act on the n-th lock, of which they know nothing yet.
local function turn_to(n)
  KEYS[1], KEYS[5], holder = all[2 * n - 1], all[2 * n], nil
end

