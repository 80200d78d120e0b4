# An MCP server of 2025-11-25 for tests: a line in, a line out.
# With the argument `library` it has resources as well.
# It has a child, to see that nothing of it is left behind; pids of both go to `pids`.
sleep 1000 &
echo "$$ $!" > pids
say() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
resources=
[ "$1" = library ] && resources='"resources":{},'
tell() { printf '{"jsonrpc":"2.0","method":"notifications/%s","params":%s}\n' "$1" "$2"; }
while read -r line; do
    id=${line#*'"id":'}
    id=${id%%,*}
    case $line in
    *'"method":"initialize"'*)
        say '"result":{"protocolVersion":"2025-11-25","capabilities":{'"$resources"'"tools":{},"prompts":{},"logging":{}},"serverInfo":{"name":"script","version":"1"}}' ;;
    *'"method":"tools/list"'*)
        say '"result":{"tools":[
            {"name":"hang","description":"Never answers.","inputSchema":{"type":"object"}},
            {"name":"repeat","description":"\nRepeats its arguments.\nSecond line.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}},"x-vendor":1.0e2},
            {"name":"fail","inputSchema":{"type":"object"}},
            {"name":"refuse","inputSchema":{"type":"object"}},
            {"name":"steer","description":"Moves the \u001b[2Jcursor.","inputSchema":{"type":"object"}}]}' |
            tr -d '\n'
        echo ;;
    *'"method":"prompts/list"'*)
        say '"result":{"prompts":[{"name":"greet","title":"Greeting"}]}' ;;
    *'"method":"resources/list"'*)
        say '"result":{"resources":[{"uri":"file:///shelf/1","name":"first"}]}' ;;
    *'"method":"resources/templates/list"'*)
        say '"result":{"resourceTemplates":[{"uriTemplate":"file:///shelf/{number}","name":"any"}]}' ;;
    *'"name":"repeat"'*)
        arguments=${line#*'"arguments":'}
        arguments=${arguments%%',"_meta"'*}
        tell progress '{"progressToken":'"$id"',"progress":1,"total":2,"message":"half"}'
        tell message '{"level":"warning","logger":"script","data":"careful"}'
        tell message '{"level":"debug","data":"too much"}'
        say '"result":{"content":[],"structuredContent":'"$arguments"',"x-vendor":1.0e2}' ;;
    *'"name":"fail"'*)
        say '"result":{"content":[{"type":"text","text":"it went wrong"}],"isError":true}' ;;
    *'"name":"refuse"'*)
        say '"error":{"code":-32050,"message":"not today","data":{"x":1.0}}' ;;
    *'"name":"steer"'*)
        say '"result":{"content":[{"type":"text","text":"\u001b[2Jgone"},{"type":"image","mimeType":"image/png","data":"AA=="}]}' ;;
    *'"name":"hang"'*)
        echo 'hanging on' >&2
        : > hanging ;;
    *'"id":'*)
        say '"error":{"code":-32601,"message":"Method not found"}' ;;
    esac
done
