# PowerShell completion for msb
Register-ArgumentCompleter -Native -CommandName msb -ScriptBlock {
    param($cur, $ast, $cursor)
    $table = '@TABLE@' -split "`n"
    function Get-Rows($context) {
        $rows = @($table | Where-Object {
            $_.StartsWith("$context`t", [StringComparison]::Ordinal)
        })
        if ($rows.Count -and $rows[0].Split("`t")[1] -ceq '=') {
            Get-Rows $rows[0].Split("`t")[2]
        } else {
            $rows
        }
    }
    $verb = ''; $option = ''
    $typed = $ast.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursor }
    foreach ($element in @($typed | Select-Object -Skip 1)) {
        $word = $element.ToString()
        if ($word -ceq '--') { return }
        $next = "$verb $word".TrimStart()
        $rows = @(Get-Rows $next)
        if ($option) { $option = '' }
        elseif (-not $rows.Count) { }
        elseif ($word.StartsWith('-')) { $option = $next }
        else { $verb = $rows[0].Split("`t")[0] }
    }
    $context = if ($option) { $option } else { $verb }
    foreach ($row in @(Get-Rows $context)) {
        $null, $word, $what = $row.Split("`t")
        if ($word -ceq '/') {
            [System.Management.Automation.CompletionCompleters]::CompleteFilename($cur)
            continue
        }
        $found = @($word)
        if ($word.StartsWith('@')) {
            $found = @(msb @($what.Split(' ')) -q 2>$null |
                ForEach-Object { $_ + $word.Substring(1) })
        }
        foreach ($name in $found) {
            if (-not $name.StartsWith($cur, [StringComparison]::Ordinal)) { continue }
            if (-not $cur -and $name.StartsWith('-')) { continue }
            $help = if ($what -and -not $word.StartsWith('@')) { $what } else { $name }
            [System.Management.Automation.CompletionResult]::new(
                $name, $name, 'ParameterValue', $help)
        }
    }
}
