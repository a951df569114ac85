-- Begins a function that contains those of a queue; pass_on.lua ends it.
local function open_queue()
