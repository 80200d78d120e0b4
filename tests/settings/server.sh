#!/bin/sh
# An MCP server of 2025-11-25 whose one tool shows how its process was started.
say() { printf '{"jsonrpc":"2.0","id":%s,%s}\n' "$id" "$1"; }
while read -r line; do
    id=${line#*'"id":'}
    id=${id%%,*}
    case $line in
    *'"method":"initialize"'*)
        say '"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"shell","version":"1"}}' ;;
    *'"method":"tools/list"'*)
        say '"result":{"tools":[{"name":"show","inputSchema":{"type":"object"}}]}' ;;
    *'"name":"show"'*)
        say '"result":{"content":[],"structuredContent":{"program":"'"$0"'","args":"'"$*"'","env":"'"$SHOWN"'","cwd":"'"$(pwd -P)"'","user":"'"$(id -un)"'"}}' ;;
    *'"id":'*)
        say '"error":{"code":-32601,"message":"Method not found"}' ;;
    esac
done
