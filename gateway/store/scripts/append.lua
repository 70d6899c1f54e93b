-- Writes new tokens and endings of one gateway's requests. ARGV: prefix, owner, seconds that unfinished and finished
-- requests stay, model, then JSON: a list of {id, adoption, offset of the tokens, tokens, offset of the logprobs, logprobs,
-- number of tokens, drawn ('0' or '1'), end}. `end` is '' or JSON; tokens and logprobs are text of fixed width per item, and
-- offsets are in characters. A request's first tokens also set its model, and whether speculators may draw for it.
-- Returns a word per item: 'ok'; 'cancel' (written, and a client has cancelled the request); 'fenced' (another gateway
-- owns the request, or this gateway by a later adoption, if the write was delayed); 'lost' (the request or its earlier
-- tokens are missing). Writing the same again changes nothing.
local prefix, me, ttl, retention = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local words = {}
for at, item in ipairs(cjson.decode(ARGV[6])) do
  local id, adoption, place, tokens, logprobs_place, logprobs, count, drawn, ending = unpack(item)
  local key = prefix .. 'request:' .. id
  local owner, now, caller, cancel = unpack(redis.call('HMGET', key, 'owner', 'adoption', 'caller', 'cancel'))
  local held = redis.call('STRLEN', prefix .. 'tokens:' .. id)
  if not owner then
    words[at] = 'lost'
  elseif owner ~= me or tonumber(now) ~= adoption then
    words[at] = 'fenced'
  elseif held < place
    or logprobs ~= '' and redis.call('STRLEN', prefix .. 'logprobs:' .. id) < logprobs_place then
    words[at] = 'lost'
  else
    if count > 0 then
      local missing = place + #tokens - held
      redis.call('SETRANGE', prefix .. 'tokens:' .. id, place, tokens)
      if logprobs ~= '' then
        redis.call('SETRANGE', prefix .. 'logprobs:' .. id, logprobs_place, logprobs)
      end
      if place == 0 then
        redis.call('HSETNX', key, 'model', ARGV[5])
        redis.call('HSETNX', key, 'drawn', drawn)
        redis.call('EXPIRE', prefix .. 'tokens:' .. id, ttl)
        redis.call('EXPIRE', prefix .. 'logprobs:' .. id, ttl)
      end
      if caller ~= '' and missing > 0 then
        local minute = math.floor(redis.call('TIME')[1] / 60)
        local rate = prefix .. 'rate:' .. caller .. ':' .. minute
        redis.call('INCRBY', rate, missing * count / #tokens)
        redis.call('EXPIRE', rate, 120)
      end
    end
    if ending ~= '' then
      redis.call('HSET', key, 'state', 'finished', 'end', ending)
      redis.call('ZREM', prefix .. 'owned:' .. me, id)
      redis.call('SREM', prefix .. 'open:' .. caller, id)
      for _, kind in ipairs({'request:', 'tokens:', 'logprobs:'}) do
        redis.call('EXPIRE', prefix .. kind .. id, retention)
      end
    end
    words[at] = cancel and 'cancel' or 'ok'
  end
end
return words
