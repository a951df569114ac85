-- The variables that the files of a queue's scripts share. Prepended to each script.
-- holder: the value of the lock key. False if the lock is free, and always for permits; nil if it
--   has not been read.
-- drawn: the last token, once the fence has been read. nil if there is none.
-- want: what the refreshed places want from now on. nil to leave it as it is.
-- out: whether the hold of the caller has been ended.
-- ends_earlier: whether a reader that ended last has left, and others hold.
-- front: the id of the first place, once the queue has been read. nil if it must be read.
-- fence: the fence, once it has been read without a draw. nil if it must be read.
local holder, drawn, want, out, ends_earlier, front, fence

