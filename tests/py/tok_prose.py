"""Raw material for the tokenizer tests: short prose in sixteen languages and code in twelve, written for this purpose.

tok_strings.py cuts, shuffles and joins it. Nothing here is quoted from anywhere, so the tests need no download and no
licence. Facts in the sentences do not matter; scripts, punctuation, numbers and spacing do."""

PROSE = {
    "english": [
        "The miller's daughter couldn't find the quern, so she'd ground barley between two flat stones instead.",
        "It's 7:45 on the 3rd of March; we've sold 1,250 sacks at £4.99 each (that's £6,237.50), haven't we?",
        '"Don\'t," he said -- then, after a pause: "I\'LL GO MYSELF, THEY\'RE WAITING."',
        "Write to mill@example.org or see https://example.org/a/b?q=flour&page=2#top for the 24-page list.",
        "Naïve café owners coöperate; the façade's jalapeño-coloured paint cost 100% more than expected...",
        "Half of a stone wheel lay in the river. Nobody knew whose it was, or why it had been thrown there.",
        "A   few    too     many      spaces, and\ta tab\there, then a line\nand another\r\nand a blank\n\n\nend.",
    ],
    "german": [
        "Die Mühle am Bach klappert nicht mehr, seit der Müller nach Österreich übergesiedelt ist.",
        "Straßenbahnhaltestellenverzeichnis und Donaudampfschifffahrtsgesellschaft sind lange Wörter, nicht wahr?",
        "Am 14.07.2021 kostete ein Kilo Roggenmehl 1,79 €; heute sind es schon 2,35 €.",
    ],
    "french": [
        "L'eau n'est pas loin : le moulin s'arrête lorsqu'il gèle, c'est-à-dire très souvent à Noël.",
        "« Où vas-tu ? » demanda-t-elle. « Là-bas, près de l'étang », répondit l'aîné à mi-voix.",
    ],
    "vietnamese": [
        "Chiếc cối xay bằng đá vẫn nằm ở góc sân, nơi bà ngoại thường ngồi mỗi buổi chiều.",
        "Giá gạo tăng 12,5% trong tháng này, nhưng người dân vẫn tiếp tục mua để dự trữ.",
    ],
    "turkish": [
        "İstanbul'un ışıkları ILIK bir gecede değirmenin üstüne düşüyordu; çocuklar ığıl ığıl akan suyu dinledi."
    ],
    "russian": [
        "Старая мельница стоит у реки, и каждый вечер мельник пересчитывает мешки с мукой.",
        "Цена выросла на 15 % за 2023 год — с 1 200 до 1 380 рублей; «кто бы мог подумать?» — спросил он.",
        "Подъезд, объём, ёлка, чёрно-белый, ЙОГУРТ, СССР и т. д.",
    ],
    "greek": [
        "Ο μυλωνάς άφησε τη μυλόπετρα δίπλα στο ποτάμι και γύρισε στο χωριό πριν βραδιάσει.",
        "Πόσο κάνει; Τρία ευρώ και 40 λεπτά. ΌΧΙ ΑΚΡΙΒΌ, είπε ο Οδυσσέας· πολύ ωραίος άνεμος σήμερα.",
    ],
    "chinese": [
        "村口的石磨已经用了一百多年，每到秋天，家家户户都来这里磨新收的麦子。",
        "他说：“明天上午9点30分，我们在北京大学东门见面，好吗？”我回答：“没问题！”",
        "繁體中文與簡體中文的字形不同，例如「麵粉」和「面粉」、「龍」和「龙」。",
        "今年产量为12345.67吨，同比增长８．９％（数据来源：本地统计局）。",
    ],
    "japanese": [
        "石臼でそばの実を挽くと、香りがふわっと部屋いっぱいに広がります。",
        "東京タワーの高さは３３３メートルで、エレベーターに乗るのに15分ぐらいかかりました。",
        "ﾊﾝｶｸのｶﾀｶﾅとひらがな、漢字、ＡＢＣが混ざった文章「テスト」です。っゃゅょー〜",
    ],
    "korean": [
        "할머니는 맷돌로 콩을 갈아서 두부를 만드셨고, 우리는 옆에서 구경하며 노래를 불렀다.",
        "2024년 10월 3일에 서울에서 만나기로 했지만 비가 와서 약속을 취소했습니다.",
        "각 (NFD) 각 ㄱㅏㄱ ㅋㅋㅋ ㅠㅠ",
    ],
    "arabic": [
        "كانت الرحى القديمة تدور طوال الليل، والقمح يتحوّل إلى دقيقٍ أبيض ناعم.",
        "في عام ١٩٨٥ بلغ السعر ٢٥٠ دينارًا؛ هل تذكرون ذلك؟ نعم، بالتأكيد!",
        "لا إله، الأُلفة، مُحَمَّدٌ، ﷺ ﻻ ﻷ ـــ",
    ],
    "hebrew": [
        "הטוחן הזקן ישב ליד הנהר וסיפר לילדים על הימים שבהם הריחיים לא נחו לרגע.",
        'בְּרֵאשִׁית הָיָה הַקֶּמַח, ואחר כך – הלחם: 3.50 ש"ח לכיכר, לא?',
    ],
    "hindi": [
        "गाँव की चक्की सुबह पाँच बजे से चलने लगती है और शाम तक आटा पीसती रहती है।",
        "क्या आपने १२३४५ रुपये में नई मशीन खरीदी? हाँ, लेकिन वह ज़्यादा आवाज़ करती है।",
        "श्रीमती क्षत्रिय ज्ञानी हैं; र्‍ य‌ क्‍ष",
    ],
    "bengali": ["নদীর ধারে পুরোনো জাঁতাকলটি এখনও আছে, কিন্তু কেউ আর গম ভাঙাতে আসে না। ১৯৭১ সালে শেষবার চলেছিল।"],
    "tamil": ["பாட்டி தினமும் காலையில் ஆட்டுக்கல்லில் மாவு அரைப்பாள்; அதன் சத்தம் வீடு முழுவதும் கேட்கும்."],
    "thai": [
        "โม่หินโบราณตั้งอยู่หน้าบ้าน คุณยายใช้มันโม่ข้าวทุกเช้าก่อนที่พวกเราจะตื่นนอน",
        "ราคาเพิ่มขึ้น ๑๒.๕ เปอร์เซ็นต์ ในปี พ.ศ. ๒๕๖๗ น้ำผึ้งก็แพงขึ้นด้วยใช่ไหม?",
    ],
    "georgian": ["ძველი წისქვილი მდინარის პირას დგას, მაგრამ ბორბალი უკვე აღარ ტრიალებს. ᲬᲘᲡᲥᲕᲘᲚᲘ"],
    "armenian": ["Հին ջրաղացը գետի ափին է, և ջրաղացպանը ամեն առավոտ ալյուր է աղում։ Եւ ի՞նչ։"],
    "amharic": ["የድሮው ወፍጮ በወንዙ ዳር ይገኛል፤ እህል ለማስፈጨት ብዙ ሰዎች ይመጣሉ።"],
}

CODE = {
    "c": """\
/* Grind n grains; returns flour in grams. */
static inline uint32_t quern_grind(const struct grain *g, size_t n)
{
\tuint32_t sum = 0;
\tfor (size_t i = 0; i < n; ++i) {
\t\tif (g[i].kind != GRAIN_STONE && (g[i].flags & 0x0Fu) == 0)
\t\t\tsum += g[i].mass_mg / 1000;
\t}
\treturn sum; // rounded down
}
#define MILL_MAX (1u << 20)
""",
    "python": """\
import re, sys
from typing import Iterable

class Mill:
    \"\"\"Turns grain into flour.\"\"\"

    def __init__(self, name: str = "quern", *, speed=3.5e-2):
        self.name, self._speed = name, speed

    @property
    def rate(self) -> float:
        return self._speed ** 2 if self._speed >= 0.0 else float('nan')

    def grind(self, grains: Iterable[int]) -> list[int]:
        return [g // 2 for g in grains if not g % 3 and g != 0xFF]

if __name__ == "__main__":
    print(f"{Mill().grind(range(10))!r:>20}", file=sys.stderr)
""",
    "javascript": """\
const grind = async (sacks, { fine = true, ...rest } = {}) => {
  const out = await Promise.all(sacks.map(s => s?.weight ?? 0));
  return out.reduce((a, b) => a + b, 0) / (fine ? 1 : 2);
};
export default class Mill extends HTMLElement {
  #speed = 1_000n;
  get html() { return `<b class="x">${this.#speed}</b>`; }
}
if (typeof window !== 'undefined' && !/^\\s*$/.test(name)) console.log("it's on");
""",
    "rust": """\
#[derive(Debug, Clone)]
pub struct Mill<'a, T: Into<f64> + Copy> { name: &'a str, grains: Vec<T> }

impl<'a, T: Into<f64> + Copy> Mill<'a, T> {
    pub fn grind(&mut self) -> Result<f64, Box<dyn std::error::Error>> {
        let total: f64 = self.grains.iter().map(|&g| g.into()).sum();
        match total { t if t > 1e6 => Err("too much".into()), t => Ok(t * 0.97) }
    }
}
fn main() { println!("{:?}", Mill { name: "q", grains: vec![1u8, 2, 3] }.grind()); }
""",
    "go": """\
package mill

import ("fmt"; "strings")

// Grind returns flour for each sack.
func (m *Mill) Grind(ctx context.Context, sacks ...Sack) (out []Flour, err error) {
\tdefer func() { if r := recover(); r != nil { err = fmt.Errorf("mill: %v", r) } }()
\tfor i, s := range sacks {
\t\tselect {
\t\tcase <-ctx.Done():
\t\t\treturn nil, ctx.Err()
\t\tdefault:
\t\t\tout = append(out, Flour{ID: i, Name: strings.ToUpper(s.Name)})
\t\t}
\t}
\treturn
}
""",
    "java": """\
package org.example.mill;

public final class Mill<T extends Comparable<? super T>> implements Runnable {
    private static final long serialVersionUID = 42L;
    private final Map<String, List<T>> sacks = new HashMap<>();

    @Override
    public synchronized void run() {
        sacks.forEach((k, v) -> System.out.printf("%s: %d%n", k, v.size()));
        throw new IllegalStateException("can't grind '" + sacks.getOrDefault("x", null) + "'");
    }
}
""",
    "sql": """\
SELECT m.name, COUNT(*) AS n, SUM(s.weight_kg) FILTER (WHERE s.kind <> 'rye') AS kg
  FROM mills m LEFT JOIN sacks s ON s.mill_id = m.id AND s.sold_at >= DATE '2024-01-01'
 WHERE m.town IN ('Ulm', 'Köln') AND NOT m.closed
 GROUP BY m.name HAVING COUNT(*) > 10 ORDER BY kg DESC NULLS LAST LIMIT 25;
-- totals only
INSERT INTO log(ts, msg) VALUES (CURRENT_TIMESTAMP, 'it''s done');
""",
    "shell": """\
#!/bin/sh -eu
for f in "$@"; do
    [ -r "$f" ] || { echo "no $f" >&2; exit 1; }
    sed -e 's/^[[:space:]]*//' -e '/^#/d' "$f" | awk -F: '{ n[$1] += $2 } END { for (k in n) print k, n[k] }' |
        sort -k2,2nr | head -n "${TOP:-10}" > "${f%.txt}.out" 2>/dev/null
done && printf '%s\\n' "$(date +%Y-%m-%dT%H:%M:%S)" "${HOME}/mill-$((RANDOM % 100))"
""",
    "html": """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Mill &amp; Stone</title>
<style>.sack > p:first-child { margin: 0 -.5em; color: #a1b2c3; width: calc(100% - 2px) }</style></head>
<body onload="init({n: 3})"><!-- the list -->
  <ul id='sacks'><li class="rye new">12&nbsp;kg</li><li data-x="1">…</li></ul><br/>
</body></html>
""",
    "haskell": """\
{-# LANGUAGE LambdaCase #-}
module Mill (grind, Grain(..)) where
import qualified Data.Map.Strict as M

data Grain = Rye | Wheat !Int | Stone { mass' :: Double } deriving (Eq, Show)

grind :: (Foldable t, Num a) => t Grain -> M.Map String a
grind = foldr (\\g acc -> M.insertWith (+) (kind g) 1 acc) M.empty
  where kind = \\case { Rye -> "rye"; Wheat n | n > 0 -> "wheat"; _ -> "other" }
main = mapM_ print . M.toList $ grind [Rye, Wheat 2, Stone 0.5] >>= id <$> pure
""",
    "json": """\
{"mill": {"name": "Quern \\u00e9 \\"No. 1\\"", "speed": -1.25e+3, "open": true, "owner": null,
  "sacks": [{"id": 1, "kg": 12.50}, {"id": 2, "kg": 0}, []], "tags": {}}}
""",
    "latex": """\
\\documentclass[11pt,a4paper]{article} \\usepackage{amsmath}
\\begin{document} Let $f\\colon \\mathbb{R}^n \\to \\mathbb{R}$; then
\\[ \\int_{0}^{\\infty} e^{-x^2}\\,dx = \\frac{\\sqrt{\\pi}}{2} \\quad\\text{(see \\S~3)} \\] % done
\\end{document}
""",
}
