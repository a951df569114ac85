-- Begins a function that contains the functions of a queue; pass_on.lua ends it.
local function open_queue()
