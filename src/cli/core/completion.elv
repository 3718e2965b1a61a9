# elvish completion for msb
use str
var msb-table = '@TABLE@'
var msb-map = [&] # made when it is first needed
fn msb-rows {|context|
    if (eq $msb-map [&]) {
        for line [(str:split "\n" $msb-table)] {
            var row = [(str:split "\t" $line)]
            if (< (count $row) 3) { continue }
            var had = []
            if (has-key $msb-map $row[0]) { set had = $msb-map[$row[0]] }
            set msb-map[$row[0]] = [$@had $row]
        }
    }
    var rows = []
    if (has-key $msb-map $context) { set rows = $msb-map[$context] }
    if (and (> (count $rows) 0) (eq $rows[0][1] '=')) {
        msb-rows $rows[0][2]
    } else {
        all $rows
    }
}
fn msb-complete {|@words|
    var cur = $words[-1]
    var verb = ''
    var option = ''
    for word $words[1..-1] {
        if (eq $word --) { return }
        var next = (str:trim-left $verb' '$word ' ')
        var rows = [(msb-rows $next)]
        if (not-eq $option '') {
            set option = ''
        } elif (== (count $rows) 0) {
            continue
        } elif (str:has-prefix $word -) {
            set option = $next
        } else {
            set verb = $rows[0][0]
        }
    }
    msb-rows (if (eq $option '') { put $verb } else { put $option }) | each {|row|
        var word = $row[1]
        if (eq $word /) {
            edit:complete-filename $cur
        } elif (str:has-prefix $word @) {
            try {
                (external msb) (str:split ' ' $row[2]) -q 2>/dev/null | each {|name|
                    put $name$word[1..]
                }
            } catch e { }
        } elif (eq (str:has-prefix $word -) (str:has-prefix $cur -)) {
            edit:complex-candidate $word &display=$word'  '$row[2]
        }
    }
}
set edit:completion:arg-completer[msb] = $msb-complete~
