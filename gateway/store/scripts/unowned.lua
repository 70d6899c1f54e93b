-- Functions for unowned requests, prepended to each script that uses them.
-- `unowned` has all of them. Indexes avoid reading all: `waiting:<model>:<caller>` has requests by arrival,
-- `turns:<model>` has callers by their oldest request, `deadlines` has all requests by deadline. Gateways of an earlier
-- version write only `unowned`; `heal_unowned` repairs the indexes.
local function waiting_keys(prefix, id)
  local model, caller = unpack(redis.call('HMGET', prefix .. 'request:' .. id, 'model', 'caller'))
  return prefix .. 'waiting:' .. (model or '') .. ':' .. (caller or ''), prefix .. 'turns:' .. (model or ''), caller or ''
end
local function note_turn(list, turns, caller)
  local oldest = redis.call('ZRANGE', list, 0, 0, 'WITHSCORES')
  if oldest[1] then
    redis.call('ZADD', turns, oldest[2], caller)
  else
    redis.call('ZREM', turns, caller)
  end
end
local function index_unowned(prefix, id)
  local created, deadline = unpack(redis.call('HMGET', prefix .. 'request:' .. id, 'created', 'deadline'))
  local list, turns, caller = waiting_keys(prefix, id)
  redis.call('ZADD', list, created or 0, id)
  redis.call('ZADD', prefix .. 'deadlines', deadline and deadline ~= '' and deadline or '+inf', id)
  note_turn(list, turns, caller)
end
local function add_unowned(prefix, id, since)
  redis.call('ZADD', prefix .. 'unowned', since, id)
  index_unowned(prefix, id)
end
-- Call it before the request's model changes.
local function remove_unowned(prefix, id)
  local list, turns, caller = waiting_keys(prefix, id)
  redis.call('ZREM', prefix .. 'unowned', id)
  redis.call('ZREM', prefix .. 'deadlines', id)
  if redis.call('ZREM', list, id) == 1 then
    note_turn(list, turns, caller)
  end
end
local function heal_unowned(prefix)
  if redis.call('ZCARD', prefix .. 'unowned') == redis.call('ZCARD', prefix .. 'deadlines') then
    return
  end
  for _, id in ipairs(redis.call('ZRANGE', prefix .. 'unowned', 0, -1)) do
    if not redis.call('ZSCORE', prefix .. 'deadlines', id) then
      index_unowned(prefix, id)
    end
  end
  for _, id in ipairs(redis.call('ZRANGE', prefix .. 'deadlines', 0, -1)) do
    if not redis.call('ZSCORE', prefix .. 'unowned', id) then
      remove_unowned(prefix, id)
    end
  end
end
